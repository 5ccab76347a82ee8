// Random: random numbers for the loading of data.
//
// They are the same on every platform and standard library. A generator is cheap to make for each
// image, so that the numbers that an image gets depend only on the seed, the epoch and its index,
// not on the thread that reads it.
#ifndef GPIPE_EXPERIMENTS_DATA_RANDOM_H_
#define GPIPE_EXPERIMENTS_DATA_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace gpipe::experiments {

// A SplitMix64 generator (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// 2014).
class Random {
 public:
  // Each list of keys gives another stream of numbers.
  explicit Random(std::initializer_list<uint64_t> keys) {
    for (uint64_t key : keys) {
      state_ ^= key;
      state_ = next();
    }
  }

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }

  // Draws a number uniformly from [0, 1).
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // Draws a number uniformly from {0, ..., bound - 1}, bound > 0. (The bias of the product is below
  // bound / 2^53.)
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(uniform() * static_cast<double>(bound));
  }

 private:
  uint64_t state_ = 0;
};

// The numbers 0, ..., size - 1 in random order.
inline std::vector<int64_t> random_permutation(int64_t size, Random random) {
  std::vector<int64_t> order(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (int64_t i = size - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(random.below(i + 1))]);
  }
  return order;
}

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_RANDOM_H_
