// bytes_to_come: the memory that an optimizer's states will take, but do not take yet.
//
// LibTorch's optimizers make the states of a parameter in its first step. So the memory of a
// snapshot that is taken before the first step says too little.
#ifndef GPIPE_SAVING_STATES_TO_COME_H_
#define GPIPE_SAVING_STATES_TO_COME_H_

#include <torch/optim/optimizer.h>

#include <cstdint>

namespace gpipe::internal {

// The bytes by which a file with the optimizer's states grows when each parameter of this process
// has made a step. For optimizers that are neither LibTorch's nor ours, and have no state yet, it
// is assumed that they keep as much as Adam.
int64_t bytes_to_come(const torch::optim::Optimizer& optimizer);

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_STATES_TO_COME_H_
