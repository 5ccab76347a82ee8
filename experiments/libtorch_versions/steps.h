// Steps: the training steps whose operators are recorded, of //models and of random programs.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_STEPS_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_STEPS_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::experiments {

struct Step {
  std::string name;
  // Runs the step in this type, on the CPU, on the calling thread.
  std::function<void(c10::ScalarType type)> run;
};

// A step of a small network of each kind of //models: forward, loss, backward, AdamW, and then a
// forward in evaluation mode. Language models come twice: with LibTorch's attention, and with their
// own attention and dropout.
std::vector<Step> zoo_steps();

// A step that runs the `count` random programs from number `first` on (gpipe/testing/programs) in
// the plain model. In bfloat16 it runs only the forward, under autocast.
Step generated_steps(uint64_t first, int64_t count);

// A hash of the bits that this program leaves in the plain model's parameters, gradients and
// buffers, after all of its calls, in float32 (or as the program itself asks). For a program that
// is not a valid model it is "invalid: " and the beginning of LibTorch's message. The program
// itself follows on the same line, so that a line that differs shows what was run.
std::string generated_hash(uint64_t seed);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_STEPS_H_
