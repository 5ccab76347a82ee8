// Footprint: the bytes that a tensor with strides occupies.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_FOOTPRINT_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_FOOTPRINT_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe::testing::fake {

// A value: a base address, and runs of consecutive bytes at strides from it. It is exact, so two
// columns of one matrix are known to be disjoint although their extents overlap.
class Footprint {
 public:
  // The empty footprint.
  Footprint() = default;
  // `bytes` consecutive bytes.
  Footprint(const void* base, size_t bytes);
  // The footprint of a tensor: elements of `item_bytes`, sizes and strides in elements.
  // Requirements: as many strides as sizes, none negative.
  Footprint(const void* base, size_t item_bytes, const std::vector<int64_t>& sizes,
            const std::vector<int64_t>& strides);

  bool empty() const { return run_ == 0; }
  // The first byte, and the one past the last.
  const char* begin() const { return begin_; }
  const char* end() const { return end_; }

  // Whether some byte is in both. Takes time proportional to the number of runs, but only if the
  // extents overlap and one footprint has gaps.
  bool overlaps(const Footprint& other) const;
  // True only if each byte of `other` is in this one. May be false even then.
  bool surely_covers(const Footprint& other) const;

 private:
  struct Dimension {
    int64_t size;
    int64_t stride;  // in bytes
    bool operator==(const Dimension& other) const {
      return size == other.size && stride == other.stride;
    }
  };
  using Run = std::pair<const char*, const char*>;

  std::vector<Run> runs() const;

  const char* begin_ = nullptr;
  const char* end_ = nullptr;
  int64_t run_ = 0;              // the bytes of each run
  std::vector<Dimension> gaps_;  // sorted by stride; empty: one run from begin_ to end_
};

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_FOOTPRINT_H_
