// Asked: the gradients that a program asks for by naming tensors, instead of all.
#ifndef GPIPE_TESTING_PROGRAMS_ASKED_H_
#define GPIPE_TESTING_PROGRAMS_ASKED_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "gpipe/options.h"
#include "gpipe/testing/programs/program.h"
#include "gpipe/testing/programs/side.h"

namespace gpipe::testing::programs {

// About half of the parameters and of the inputs that want a gradient, chosen by the program's
// seed. None of the parameters has hooks (docs/guide/17-same-training.md). Both sides of a program
// have the same ones. Whatever a program asks for, what it got is in .grad afterwards.
class Asked {
 public:
  Asked(const Program& program, const Side& side, const Batch& batch);

  // Whether the program asks for some, and there are some.
  bool some() const { return !tensors_.empty(); }

  // The pipeline's side: runs the backward of `loss`.
  void backward(const at::Tensor& loss) const;

  // The plain model's side, which computes all gradients: before and after it runs. The gradients
  // of what was not asked for are forgotten, and the others added up anew, then added to .grad:
  // autograd adds to it once.
  void begin_plain();
  void end_plain();

 private:
  const Program& program_;
  Tensors tensors_;
  Tensors all_;     // all that may have a .grad
  Tensors before_;  // their .grad
};

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_ASKED_H_
