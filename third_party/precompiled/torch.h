// The headers of LibTorch and of the standard library that most sources here include, for
// precompiled.bzl. Nobody includes this file: each source names what it needs, and builds without
// it, too (workspaces that depend on this one do).

#ifndef THIRD_PARTY_PRECOMPILED_TORCH_H_
#define THIRD_PARTY_PRECOMPILED_TORCH_H_

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

// Only the plugin of gcc in instantiate.cc knows this pragma.
#pragma gpipe_instantiate

#endif  // THIRD_PARTY_PRECOMPILED_TORCH_H_
