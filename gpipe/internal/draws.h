// Draws: random numbers that depend on what is computed, not on when and where.
//
// LibTorch's CPU generator belongs to the whole process: stages that draw at the same time would
// race for its numbers, and a recompute could not draw again what its forward drew. Inside a
// pipeline every random operator that was given no generator gets one that is seeded from (step,
// micro-batch, layer). Hence results with a fixed seed do not depend on threads, balance, schedule
// or checkpoint mode.
#ifndef GPIPE_INTERNAL_DRAWS_H_
#define GPIPE_INTERNAL_DRAWS_H_

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace torch {
class Library;
}  // namespace torch

namespace gpipe::internal {

// The generators of one thread of execution. Not thread-safe: one stage or one loop owns it.
class Draws {
 public:
  // From here on, draws are those of this layer in this micro-batch of the step; the first one
  // seeds.
  void enter(uint64_t step_seed, int64_t micro_batch, int64_t layer);

  // The generator for tensors on `device`, seeded for the layer entered last.
  const at::Generator& generator(c10::Device device);

  // The one in force on this thread, or null.
  static Draws* current();

 private:
  struct Entry {
    c10::Device device;
    at::Generator generator;
    bool seeded;
  };
  uint64_t seed_ = 0;
  std::vector<Entry> entries_;
};

// Puts `draws` in force on this thread (under an OperatorModeScope), and restores the former on
// exit.
class DrawsScope {
 public:
  explicit DrawsScope(Draws* draws);
  ~DrawsScope();
  DrawsScope(const DrawsScope&) = delete;
  DrawsScope& operator=(const DrawsScope&) = delete;

 private:
  Draws* former_;
};

// A step's seed, drawn from the process's CPU generator, so that torch::manual_seed governs it.
uint64_t draw_step_seed();

// For operator_mode.cc.
void register_random_kernels(torch::Library& aten);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_DRAWS_H_
