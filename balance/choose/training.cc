#include "balance/choose/training.h"

namespace gpipe::balance {

at::Tensor sum_of_first_output(const Tensors& outputs, const Tensors& /*targets*/) {
  return outputs.at(0).sum();
}

}  // namespace gpipe::balance
