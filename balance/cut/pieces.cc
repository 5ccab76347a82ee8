#include "balance/cut/pieces.h"

#include <cstddef>
#include <stdexcept>

namespace gpipe::balance {

std::string wrong_ranges(int64_t layers, const std::vector<LayerRange>& keep_together) {
  for (size_t r = 0; r < keep_together.size(); ++r) {
    const LayerRange& range = keep_together[r];
    if (0 <= range.first && range.first <= range.last && range.last < layers) continue;
    return "keep_together[" + std::to_string(r) + "] is layers " + std::to_string(range.first) +
           " to " + std::to_string(range.last) + ", expected first <= last, both from 0 to " +
           std::to_string(layers - 1);
  }
  return "";
}

std::vector<LayerRange> joined_layers(const std::vector<int64_t>& pieces) {
  std::vector<LayerRange> result;
  int64_t first = 0;
  for (const int64_t layers : pieces) {
    if (layers > 1) result.push_back({first, first + layers - 1});
    first += layers;
  }
  return result;
}

Pieces::Pieces(int64_t layers, const std::vector<LayerRange>& keep_together,
               const std::string& prefix)
    : may_cut_(static_cast<size_t>(layers) + 1), places_{0} {
  const std::string wrong = wrong_ranges(layers, keep_together);
  if (!wrong.empty()) throw std::invalid_argument(prefix + wrong);
  // joined[i]: ranges that begin less ranges that end between layers i - 1 and i.
  std::vector<int64_t> joined(may_cut_.size());
  for (const LayerRange& range : keep_together) {
    ++joined[static_cast<size_t>(range.first) + 1];
    --joined[static_cast<size_t>(range.last) + 1];
  }
  may_cut_[0] = true;
  int64_t around = 0;
  for (int64_t i = 1; i <= layers; ++i) {
    around += joined[static_cast<size_t>(i)];
    if (around > 0) continue;
    may_cut_[static_cast<size_t>(i)] = true;
    places_.push_back(i);
  }
}

bool Pieces::allow(const std::vector<int64_t>& balance) const {
  int64_t before = 0;
  for (const int64_t layers : balance) {
    if (layers < 1 || before > places_.back() || !may_cut(before)) return false;
    before += layers;
  }
  return true;
}

}  // namespace gpipe::balance
