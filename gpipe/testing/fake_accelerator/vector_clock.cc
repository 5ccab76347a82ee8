#include "gpipe/testing/fake_accelerator/vector_clock.h"

#include <algorithm>

namespace gpipe::testing::fake {

uint64_t VectorClock::of(int stream) const {
  const auto index = static_cast<size_t>(stream);
  return index < times_.size() ? times_[index] : 0;
}

void VectorClock::see(int stream, uint64_t time) {
  const auto index = static_cast<size_t>(stream);
  if (index >= times_.size()) times_.resize(index + 1);
  times_[index] = std::max(times_[index], time);
}

void VectorClock::join(const VectorClock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
}

}  // namespace gpipe::testing::fake
