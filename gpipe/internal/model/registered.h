// check_registered: that a Sequential runs the layers that it has registered.
#ifndef GPIPE_INTERNAL_MODEL_REGISTERED_H_
#define GPIPE_INTERNAL_MODEL_REGISTERED_H_

#include <torch/nn/modules/container/sequential.h>

namespace gpipe::internal {

// A Sequential keeps its layers twice: what it runs, and what it has registered under names, from
// which parameters() and all our messages come. They differ after a push_back that threw for its
// name, which leaves the layer behind, and after replace_module, register_module or
// unregister_module, which change the names alone.
//
// Throws c10::ValueError that says which layer differs and what to do, also for a null pointer.
void check_registered(const torch::nn::Sequential& model);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_REGISTERED_H_
