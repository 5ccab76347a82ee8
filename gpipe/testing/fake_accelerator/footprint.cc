#include "gpipe/testing/fake_accelerator/footprint.h"

#include <algorithm>

namespace gpipe::testing::fake {

Footprint::Footprint(const void* base, size_t bytes)
    : begin_(static_cast<const char*>(base)),
      end_(begin_ + bytes),
      run_(static_cast<int64_t>(bytes)) {}

Footprint::Footprint(const void* base, size_t item_bytes, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides)
    : begin_(static_cast<const char*>(base)), run_(static_cast<int64_t>(item_bytes)) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) {
      *this = Footprint();
      return;
    }
    // An expanded dimension (stride 0) adds no bytes.
    if (sizes[d] > 1 && strides[d] > 0) {
      gaps_.push_back({sizes[d], strides[d] * static_cast<int64_t>(item_bytes)});
    }
  }
  std::sort(gaps_.begin(), gaps_.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  int64_t extent = run_;
  for (const Dimension& gap : gaps_) extent += (gap.size - 1) * gap.stride;
  end_ = begin_ + extent;
  // Runs of bytes that touch or overlap are merged into one.
  while (!gaps_.empty() && gaps_.front().stride <= run_) {
    run_ += (gaps_.front().size - 1) * gaps_.front().stride;
    gaps_.erase(gaps_.begin());
  }
}

std::vector<Footprint::Run> Footprint::runs() const {
  std::vector<Run> all = {{begin_, begin_ + run_}};
  for (const Dimension& gap : gaps_) {
    const size_t former = all.size();
    for (int64_t i = 1; i < gap.size; ++i) {
      for (size_t k = 0; k < former; ++k) {
        all.emplace_back(all[k].first + i * gap.stride, all[k].second + i * gap.stride);
      }
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

bool Footprint::overlaps(const Footprint& other) const {
  if (empty() || other.empty() || end_ <= other.begin_ || other.end_ <= begin_) return false;
  if (gaps_.empty() && other.gaps_.empty()) return true;
  const std::vector<Run> mine = runs(), theirs = other.runs();
  // All runs of one footprint have the same length, so their ends are sorted as their beginnings
  // are.
  for (size_t i = 0, k = 0; i < mine.size() && k < theirs.size();) {
    if (mine[i].second <= theirs[k].first) {
      ++i;
    } else if (theirs[k].second <= mine[i].first) {
      ++k;
    } else {
      return true;
    }
  }
  return false;
}

bool Footprint::surely_covers(const Footprint& other) const {
  if (other.empty()) return true;
  if (gaps_.empty()) return begin_ <= other.begin_ && other.end_ <= end_;
  return begin_ == other.begin_ && run_ == other.run_ && gaps_ == other.gaps_;
}

}  // namespace gpipe::testing::fake
