#include "gpipe/testing/plain_model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "gpipe/batch_size.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/testing/autocast_scope.h"
#include "interception/interception.h"
#include "skip/tracker.h"

namespace gpipe::testing {
namespace {

std::vector<Tensors> sliced(const Tensors& tensors, const std::vector<int64_t>& sizes) {
  std::vector<Tensors> result(sizes.size());
  for (const at::Tensor& tensor : tensors) {
    // Each cut is differentiable: the gradient is joined from the gradients of the pieces. narrow()
    // would pad each gradient with zeros and add them up, which turns -0 into 0.
    const Tensors pieces = tensor.defined() ? tensor.split_with_sizes(sizes) : Tensors();
    for (size_t i = 0; i < sizes.size(); ++i) {
      result[i].push_back(pieces.empty() ? at::Tensor() : pieces[i]);
    }
  }
  return result;
}

std::vector<int64_t> sizes_of(const Tensors& inputs, int64_t chunks) {
  return micro_batch_sizes(batch_size(inputs, "input"), chunks);
}

// Slices as sliced() does, but each piece is a leaf of its own, so that its micro-batch can have a
// backward of its own.
std::vector<Tensors> sliced_to_leaves(const Tensors& inputs, const std::vector<int64_t>& sizes) {
  std::vector<Tensors> result = sliced(inputs, sizes);
  for (Tensors& pieces : result) {
    for (at::Tensor& piece : pieces) {
      if (piece.defined()) piece = piece.detach().requires_grad_(piece.requires_grad());
    }
  }
  return result;
}

// Joins the gradients of the leaves and passes them to the inputs.
void backward_into(const Tensors& inputs, const std::vector<Tensors>& leaves) {
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].defined() || !inputs[k].requires_grad()) continue;
    bool reached = false;
    std::vector<at::Tensor> gradients;
    for (const Tensors& pieces : leaves) {
      const at::Tensor& gradient = pieces[k].grad();
      reached = reached || gradient.defined();
      gradients.push_back(gradient.defined() ? gradient : at::zeros_like(pieces[k]));
    }
    if (reached) torch::autograd::backward({inputs[k]}, {at::cat(gradients, 0)});
  }
}

std::vector<size_t> indices(size_t count, BackwardOrder order) {
  std::vector<size_t> result(count);
  std::iota(result.begin(), result.end(), size_t{0});
  if (order == BackwardOrder::kDescending) std::reverse(result.begin(), result.end());
  return result;
}

Tensors join(const std::vector<Tensors>& pieces) {
  Tensors result;
  for (size_t k = 0; k < pieces[0].size(); ++k) {
    std::vector<at::Tensor> column;
    for (const Tensors& piece : pieces) column.push_back(piece[k]);
    // A single piece is not joined, so that it keeps its strides, because strides decide the order
    // of sums over a tensor.
    result.push_back(column.size() == 1 || !column[0].defined() ? column[0] : at::cat(column, 0));
  }
  return result;
}

struct Copy : torch::autograd::Function<Copy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->set_materialize_grads(false);
    return internal::copy_in_layout(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0].defined() ? internal::copy_in_layout(gradients[0]) : gradients[0]};
  }
};

}  // namespace

at::Tensor own_copy(const at::Tensor& tensor) {
  return tensor.defined() ? Copy::apply(tensor) : tensor;
}

namespace {

torch::nn::AnyValue copied(torch::nn::AnyValue any) {
  internal::Value value = internal::from_any(std::move(any));
  for (at::Tensor& tensor : value.tensors) {
    tensor = own_copy(tensor);
  }
  return internal::to_any(std::move(value));
}

Tensors detached(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  return tensors;
}

}  // namespace

PlainModel::PlainModel(torch::nn::Sequential model, int64_t chunks, std::set<int64_t> copied_before)
    : model_(std::move(model)), chunks_(chunks), copied_before_(std::move(copied_before)) {}

std::vector<Tensors> PlainModel::run(const std::vector<Tensors>& micro_batches) {
  const uint64_t seed = internal::draw_step_seed();
  internal::InterceptionScope mode;
  internal::RandomStreams draws;
  internal::RandomStreamsScope draws_scope(&draws);
  std::vector<Tensors> outputs;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    skip::Scope skips;
    auto kind = internal::argument_kind(*model_->begin());
    torch::nn::AnyValue value = internal::to_any(internal::shape_as(
        kind.value_or(internal::ValueKind::kTensor), micro_batches[i], "the model"));
    int64_t index = 0;
    for (auto layer = model_->begin(); layer != model_->end(); ++layer, ++index) {
      if (copied_before_.count(index) > 0) value = copied(std::move(value));
      draws.enter(seed, static_cast<int64_t>(i), index);
      value = layer->any_forward(std::move(value));
    }
    outputs.push_back(internal::from_any(std::move(value)).tensors);
  }
  return outputs;
}

void PlainModel::unshare_gradients() {
  c10::NoGradGuard no_grad;
  for (at::Tensor& parameter : model_->parameters()) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.has_storage() && gradient.storage().use_count() > 1) {
      gradient = gradient.clone();
    }
  }
}

StepResult PlainModel::step(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                            BackwardOrder order) {
  const int64_t rows = batch_size(inputs, "input");
  const std::vector<int64_t> sizes = micro_batch_sizes(rows, chunks_);
  const auto micro_targets = sliced(targets, sizes);
  const std::vector<Tensors> leaves = sliced_to_leaves(inputs, sizes);
  std::vector<Tensors> outputs = run(leaves);
  StepResult result;
  std::vector<at::Tensor> losses;
  for (size_t i = 0; i < outputs.size(); ++i) {
    losses.push_back(loss_fn(outputs[i], micro_targets[i]));
  }
  for (size_t i : indices(outputs.size(), order)) {
    const double weight = static_cast<double>(sizes[i]) / static_cast<double>(rows);
    torch::autograd::backward({losses[i]}, {at::full(losses[i].sizes(), weight,
                                                     losses[i].options().requires_grad(false))});
    unshare_gradients();
  }
  backward_into(inputs, leaves);
  for (size_t i = 0; i < outputs.size(); ++i) {
    result.loss +=
        static_cast<double>(sizes[i]) / static_cast<double>(rows) * losses[i].item<double>();
  }
  result.outputs = detached(join(outputs));
  return result;
}

StepResult PlainModel::forward_backward(const Tensors& inputs, const Tensors& targets,
                                        const LossFn& loss_fn,
                                        std::optional<at::ScalarType> autocast) {
  const std::vector<int64_t> sizes = sizes_of(inputs, chunks_);
  const std::vector<Tensors> input_leaves = sliced_to_leaves(inputs, sizes);
  std::vector<Tensors> outputs;
  {
    std::optional<AutocastScope> scope;
    if (autocast) scope.emplace(inputs.at(0).device().type(), *autocast, /*cache=*/false);
    outputs = run(input_leaves);
  }
  Tensors leaves = join(outputs);
  // Hooks take the gradients, because .grad would have the strides of the leaf, and the strides
  // decide the order of sums.
  Tensors arrived(leaves.size());
  for (size_t k = 0; k < leaves.size(); ++k) {
    at::Tensor& leaf = leaves[k];
    if (!leaf.defined()) continue;
    leaf = leaf.detach().requires_grad_(leaf.requires_grad());
    if (!leaf.requires_grad()) continue;
    leaf.register_hook([&arrived, k](const at::Tensor& gradient) { arrived[k] = gradient; });
  }
  StepResult result;
  for (const at::Tensor& leaf : leaves) {
    result.outputs.push_back(leaf.defined() ? leaf.detach().requires_grad_(leaf.requires_grad())
                                            : leaf);
  }
  const at::Tensor loss = loss_fn(leaves, targets);
  loss.backward();
  result.loss = loss.item<double>();
  for (size_t i : indices(outputs.size(), BackwardOrder::kDescending)) {
    std::vector<at::Tensor> roots;
    std::vector<at::Tensor> gradients;
    for (size_t k = 0; k < leaves.size(); ++k) {
      if (!outputs[i][k].defined() || !arrived[k].defined() || !outputs[i][k].requires_grad())
        continue;
      int64_t start = 0;
      for (size_t before = 0; before < i; ++before) start += outputs[before][k].size(0);
      roots.push_back(outputs[i][k]);
      gradients.push_back(arrived[k].narrow(0, start, outputs[i][k].size(0)));
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    unshare_gradients();
  }
  backward_into(inputs, input_leaves);
  return result;
}

Tensors PlainModel::forward(const Tensors& inputs) {
  return join(run(sliced(inputs, sizes_of(inputs, chunks_))));
}

}  // namespace gpipe::testing
