// CarriedGenerators: whether layers draw from generators of their own whose states go on from one
// step to the next. No snapshot or checkpoint has these states.
#ifndef GPIPE_INTERNAL_OPERATORS_CARRIED_GENERATORS_H_
#define GPIPE_INTERNAL_OPERATORS_CARRIED_GENERATORS_H_

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <set>

namespace gpipe::internal {

// Lives for a step, and watches what this process's pipelines draw. A generator that has just been
// seeded, or made, when the step first draws from it carries nothing from the step before.
//
// Thread-safety: see() may be called on any thread. Otherwise as an int.
class CarriedGenerators {
 public:
  CarriedGenerators();
  ~CarriedGenerators();
  CarriedGenerators(const CarriedGenerators&) = delete;
  CarriedGenerators& operator=(const CarriedGenerators&) = delete;

  // The first layer that has drawn from a generator that carries a state, or the number of layers
  // if the loss function has; negative if the layer is not known; nullopt if there is none.
  std::optional<int64_t> layer() const;

  // A layer is about to draw from a generator that it gave.
  static void see(const at::Generator& generator, int64_t layer);

 private:
  CarriedGenerators* const former_;
  std::set<const c10::GeneratorImpl*> seen_;
  std::optional<int64_t> layer_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_CARRIED_GENERATORS_H_
