#include "gpipe/internal/operators/carried_generators.h"

#include <ATen/core/Tensor.h>

#include <cstring>
#include <mutex>
#include <utility>

namespace gpipe::internal {
namespace {

std::mutex& mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

CarriedGenerators* current = nullptr;  // guarded by mutex()

// Whether the generator is in the state that its seed gives.
bool is_just_seeded(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  at::Generator seeded = generator.clone();
  seeded.set_current_seed(generator.current_seed());
  const at::Tensor want = seeded.get_state();
  const at::Tensor have = generator.get_state();
  return have.nbytes() == want.nbytes() &&
         std::memcmp(have.const_data_ptr(), want.const_data_ptr(), have.nbytes()) == 0;
}

}  // namespace

CarriedGenerators::CarriedGenerators()
    : former_([this] {
        const std::lock_guard<std::mutex> lock(mutex());
        return std::exchange(current, this);
      }()) {}

CarriedGenerators::~CarriedGenerators() {
  const std::lock_guard<std::mutex> lock(mutex());
  current = former_;
}

std::optional<int64_t> CarriedGenerators::layer() const {
  const std::lock_guard<std::mutex> lock(mutex());
  return layer_;
}

void CarriedGenerators::see(const at::Generator& generator, int64_t layer) {
  const std::lock_guard<std::mutex> lock(mutex());
  if (current == nullptr || !current->seen_.insert(generator.unsafeGetGeneratorImpl()).second) {
    return;
  }
  if (!current->layer_ && !is_just_seeded(generator)) current->layer_ = layer;
}

}  // namespace gpipe::internal
