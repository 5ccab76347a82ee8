// check_registered: checks that a Sequential runs the layers that it has registered.
#ifndef GPIPE_INTERNAL_MODEL_REGISTERED_H_
#define GPIPE_INTERNAL_MODEL_REGISTERED_H_

#include <torch/nn/modules/container/sequential.h>

namespace gpipe::internal {

// A Sequential keeps two lists: the layers that it runs, and the modules that it has registered
// under names, from which parameters() and all our messages come. They differ after a push_back
// that threw because of its name, since it leaves the layer in the first list, and after
// replace_module, register_module or unregister_module, which change the second list only.
//
// Throws c10::ValueError that says which layer differs and what to do, also for a null pointer.
void check_registered(const torch::nn::Sequential& model);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_REGISTERED_H_
