// Program: a random program, which consists of a model, its inputs, and the way in which they are
// run.
#ifndef GPIPE_TESTING_PROGRAMS_PROGRAM_H_
#define GPIPE_TESTING_PROGRAMS_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/testing/programs/layer.h"
#include "gpipe/testing/programs/table.h"

namespace gpipe::testing::programs {

enum class Entry : uint8_t {
  kForward,    // forward, the loss outside, backward
  kStep,       // step with 1F1B
  kStepGPipe,  // step with GPipe's schedule
  kStepTable,  // step with any other schedule: several stages on a worker, split backwards
  kNoGrad,     // forward only
  kInference,  // forward only, in inference mode
};

// How an input is stored: on its own, or as a view of a larger tensor.
enum class Layout : uint8_t { kContiguous, kOffset, kEverySecondRow, kTransposed, kExpanded };

struct Input {
  std::vector<int64_t> shape;  // the shape of a row
  bool integer = false;
  bool requires_grad = false;
  Layout layout = Layout::kContiguous;
};

// The gradients that the backward of a kForward computes: all, or those of some tensors, which are
// given to torch::autograd::grad or to torch::autograd::backward (see Asked).
enum class Ask : uint8_t { kAll, kGrad, kBackward };

// How the calling thread rounds during the calls.
enum class Rounding : uint8_t { kNearest, kUpward, kTowardZero };

enum class Loss : uint8_t { kMse, kProduct, kSmoothL1, kCrossEntropy };
enum class Optimizer : uint8_t { kNone, kMomentum, kAdam, kAdamW };
enum class ZeroGrad : uint8_t { kNone, kZero, kEverySecondCall };

struct Program {
  uint64_t seed = 0;
  std::vector<Layer> layers;
  std::vector<Input> inputs;
  std::vector<int64_t> balance;
  std::vector<Checkpoint> checkpoints;  // [stage]
  int64_t chunks = 1;
  int64_t rows = 1;
  bool train = true;
  bool autocast = false;
  bool deferred_batch_norm = false;
  bool graphs = false;  // whether the pipeline uses graphs; not drawn
  bool target_requires_grad = false;
  // Whether the program runs in double, because its gradients are exact only up to the order of
  // sums.
  bool in_double = false;
  Entry entry = Entry::kForward;
  // For a kStepTable: whether the schedule is that of a named generator, on its placement.
  // Otherwise it is random.
  bool generator = false;
  // For entries that step: whether the pipeline runs a step whose loss function throws before the
  // first call. The effects of that step on buffers and gradients are undone.
  bool fails_first = false;
  Ask asked = Ask::kAll;
  // Whether all stages are on one worker, which is the calling thread. Drawn only for kForward,
  // kStep and the entries of forward_only().
  bool one_worker = false;
  // The calling thread's modes during the calls, on the CPU. They are set after the pipeline is
  // made.
  Rounding rounding = Rounding::kNearest;
  bool flush_denormals = false;
  Loss loss = Loss::kMse;
  Optimizer optimizer = Optimizer::kNone;
  ZeroGrad zero_grad = ZeroGrad::kNone;
  int64_t calls = 1;

  bool is_step() const {
    return entry == Entry::kStep || entry == Entry::kStepGPipe || entry == Entry::kStepTable;
  }
  // The schedule table of a kStepTable.
  Table table() const { return {seed, generator, static_cast<int64_t>(balance.size())}; }
  bool forward_only() const { return entry == Entry::kNoGrad || entry == Entry::kInference; }
};

// The program of a seed. `without`: words; a layer or feature whose text contains one is not drawn.
Program random_program(uint64_t seed, const std::vector<std::string>& without);

// The program as text close to C++, from which a test can be written.
std::string to_text(const Program& program);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_PROGRAM_H_
