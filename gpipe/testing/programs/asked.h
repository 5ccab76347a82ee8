// Asked: the gradients that a program asks for by naming tensors, instead of asking for all.
#ifndef GPIPE_TESTING_PROGRAMS_ASKED_H_
#define GPIPE_TESTING_PROGRAMS_ASKED_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "gpipe/options.h"
#include "gpipe/testing/programs/program.h"
#include "gpipe/testing/programs/side.h"

namespace gpipe::testing::programs {

// The named tensors are about half of the parameters and about half of the inputs that want a
// gradient. The program's seed chooses them, so both sides of a program have the same ones. None of
// the parameters has hooks (docs/guide/17-same-training.md). After the call, .grad has the
// gradients that the program got.
class Asked {
 public:
  Asked(const Program& program, const Side& side, const Batch& batch);

  // Whether the program asks for some gradients only, and the seed has chosen at least one tensor.
  bool some() const { return !tensors_.empty(); }

  // For the pipeline's side: runs the backward of `loss` for the named tensors.
  void backward(const at::Tensor& loss) const;

  // For the plain model's side, which computes all gradients: begin_plain() is called before the
  // model runs, and end_plain() after it. They drop the gradients of tensors that were not asked
  // for. They add up the other gradients from zero, and then add the sums to .grad once, as
  // autograd does.
  void begin_plain();
  void end_plain();

 private:
  const Program& program_;
  Tensors tensors_;
  Tensors all_;     // all tensors that may have a .grad
  Tensors before_;  // the .grad of all_ before the plain model runs
};

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_ASKED_H_
