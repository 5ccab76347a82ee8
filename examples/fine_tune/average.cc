#include "examples/fine_tune/average.h"

#include <ATen/core/Tensor.h>
#include <torch/utils.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace fine_tune {
namespace {

constexpr const char* kEnd = "_average";

// The parameters of this process, each with its average.
std::vector<std::pair<at::Tensor, at::Tensor>> averages(gpipe::GPipe& pipe) {
  std::unordered_set<const void*> here;
  for (const at::Tensor& parameter : pipe->local_parameters()) {
    here.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> found;
  for (const auto& module : pipe->modules()) {
    const auto buffers = module->named_buffers(/*recurse=*/false);
    for (const auto& parameter : module->named_parameters(/*recurse=*/false)) {
      const at::Tensor* const average = buffers.find(parameter.key() + kEnd);
      if (average == nullptr || here.erase(parameter.value().unsafeGetTensorImpl()) == 0) continue;
      found.emplace_back(parameter.value(), *average);
    }
  }
  return found;
}

}  // namespace

void add_averages(torch::nn::Module& model) {
  for (const auto& module : model.modules()) {
    for (const auto& parameter : module->named_parameters(/*recurse=*/false)) {
      if (!parameter.value().requires_grad()) continue;
      module->register_buffer(parameter.key() + kEnd, parameter.value().detach().clone());
    }
  }
}

void update_averages(gpipe::GPipe& pipe, double decay) {
  const torch::NoGradGuard no_grad;
  for (auto& [parameter, average] : averages(pipe)) average.lerp_(parameter, 1 - decay);
}

WithAverages::WithAverages(gpipe::GPipe pipe) : pipe_(std::move(pipe)) { exchange(); }
WithAverages::~WithAverages() { exchange(); }

void WithAverages::exchange() {
  const torch::NoGradGuard no_grad;
  for (auto& [parameter, average] : averages(pipe_)) {
    const at::Tensor value = parameter.detach().clone();
    parameter.copy_(average);
    average.copy_(value);
  }
}

}  // namespace fine_tune
