#include "models/adaptable_linear.h"

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/init.h>
#include <torch/serialize/input-archive.h>

#include <cmath>
#include <cstddef>

namespace gpipe::models {
namespace internal {
namespace {

namespace F = torch::nn::functional;

at::ScalarType adapter_type(at::ScalarType weight) {
  return c10::elementSize(weight) < c10::elementSize(at::kFloat) ? at::kFloat : weight;
}

}  // namespace

LowRankAdapterImpl::LowRankAdapterImpl(AdapterShape shape, const at::Tensor& weight)
    : shape_(std::move(shape)),
      in_features_(weight.size(1)),
      tensor_options_(
          at::TensorOptions(weight.device()).dtype(adapter_type(weight.scalar_type()))) {
  reset();
}

void LowRankAdapterImpl::reset() {
  const int64_t rows = shape_.end - shape_.begin;
  A = register_parameter("A", at::empty({shape_.rank, in_features_}, tensor_options_));
  B = register_parameter("B", at::empty({rows, shape_.rank}, tensor_options_));
  if (shape_.dora) magnitude = register_parameter("magnitude", at::empty({rows}, tensor_options_));
}

void LowRankAdapterImpl::pretty_print(std::ostream& stream) const {
  stream << "LowRankAdapter(" << shape_.name << ", rank=" << shape_.rank << ")";
}

void LowRankAdapterImpl::draw(const at::Tensor& weight) {
  const torch::NoGradGuard no_grad;
  torch::nn::init::kaiming_uniform_(A, std::sqrt(5.0));
  B.zero_();
  if (shape_.dora) magnitude.copy_(lengths(rows_of(weight), {}));
}

at::Tensor LowRankAdapterImpl::lengths(const at::Tensor& weight, const at::Tensor& product) const {
  const at::Tensor rows = shape_.transposed ? weight.t().contiguous().t() : weight;
  const at::Tensor sum = product.defined() ? rows + product : rows;
  return at::linalg_vector_norm(sum, 2, at::IntArrayRef({1})).to(sum.scalar_type());
}

at::Tensor LowRankAdapterImpl::change() const {
  // On CPUs, products of 2-byte types are computed in 4-byte ones, as in peft.
  const bool widened =
      B.is_cpu() && (B.scalar_type() == at::kHalf || B.scalar_type() == at::kBFloat16);
  if (!widened) return at::mm(B, A) * shape_.scaling;
  return (at::mm(B.to(at::kFloat), A.to(at::kFloat)) * shape_.scaling).to(B.scalar_type());
}

at::Tensor LowRankAdapterImpl::adapted(const at::Tensor& input, const at::Tensor& result,
                                       const at::Tensor& weight, const at::Tensor& bias) {
  const bool drops = is_training() && shape_.dropout > 0;
  at::Tensor x = input.to(A.scalar_type());
  if (drops) x = at::dropout(x, shape_.dropout, true);
  const at::Tensor product = F::linear(F::linear(x, A), B);
  if (!shape_.dora) return (result + product * shape_.scaling).to(result.scalar_type());

  at::Tensor base;
  if (drops) {
    base = F::linear(x, rows_of(weight).to(x.scalar_type()));
  } else {
    base = bias.defined() ? result - rows_of(bias) : result;
  }
  at::Tensor length;
  {
    // The lengths of the rows are taken as constants (section 4.3 of the DoRA paper).
    const torch::NoGradGuard no_grad;
    length = lengths(rows_of(weight).to(x.scalar_type()),
                     shape_.scaling * at::mm(B, A).to(x.scalar_type()));
  }
  const at::Tensor factor = magnitude / length;
  return (result + ((factor - 1) * base + factor * product * shape_.scaling))
      .to(result.scalar_type());
}

void LowRankAdapterImpl::merge_into(at::Tensor& weight) const {
  at::Tensor rows = rows_of(weight);
  const at::Tensor product = change();
  if (!shape_.dora) {
    rows.add_(product);
    return;
  }
  const at::Tensor factor = (magnitude / lengths(rows, product)).view({-1, 1});
  rows.copy_(factor * (rows + product));
}

}  // namespace internal

AdaptableLinearImpl::AdaptableLinearImpl(const torch::nn::LinearOptions& linear_options)
    : options(linear_options) {
  reset();
}

void AdaptableLinearImpl::reset() {
  // A clone's parameter is frozen if the original's parameter is.
  const bool weight_trains = !weight.defined() || weight.requires_grad(),
             bias_trains = !bias.defined() || bias.requires_grad();
  const int64_t in = options.in_features(), out = options.out_features();
  weight = register_parameter("weight", at::empty({out, in}), weight_trains);
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  if (options.bias()) {
    bias = register_parameter("bias", at::empty(out), bias_trains);
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    torch::nn::init::uniform_(bias, -bound, bound);
  } else {
    bias = register_parameter("bias", {}, /*requires_grad=*/false);
  }
  std::vector<internal::AdapterShape> shapes;
  for (const internal::LowRankAdapter& adapter : adapters_) shapes.push_back(adapter->shape());
  adapters_.clear();
  register_adapters(shapes);
  merged_version_ = version();  // a clone gets its values later; that is not a write
}

void AdaptableLinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "AdaptableLinear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << options.bias() << ")";
}

at::Tensor AdaptableLinearImpl::forward(const at::Tensor& input) {
  if (is_merged()) {
    check_merged(input);
    // The layer may have been moved or converted since merge().
    return torch::nn::functional::linear(input, merged_.to(weight.device(), weight.scalar_type()),
                                         bias);
  }
  const at::Tensor result = torch::nn::functional::linear(input, weight, bias);
  if (adapters_.empty()) return result;
  std::vector<at::Tensor> parts;
  int64_t done = 0;
  for (const internal::LowRankAdapter& adapter : adapters_) {
    const auto& [begin, end] = std::pair(adapter->shape().begin, adapter->shape().end);
    if (begin > done) parts.push_back(result.slice(-1, done, begin));
    const bool whole = begin == 0 && end == options.out_features();
    internal::LowRankAdapter module = adapter;
    parts.push_back(
        module->adapted(input, whole ? result : result.slice(-1, begin, end), weight, bias));
    done = end;
  }
  if (done < options.out_features()) parts.push_back(result.slice(-1, done));
  return parts.size() == 1 ? parts.front() : at::cat(parts, -1);
}

void AdaptableLinearImpl::check_merged(const at::Tensor& input) const {
  const std::string& name = adapters_.front()->shape().name;
  bool trains = weight.requires_grad();
  for (const internal::LowRankAdapter& adapter : adapters_) {
    for (const at::Tensor& parameter : adapter->parameters()) trains |= parameter.requires_grad();
  }
  const bool records =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
  TORCH_CHECK_VALUE(!is_training() && !(trains && records), "the adapters of '", name,
                    "' are merged into the weight, where they would get no gradient; call "
                    "unmerge_lora before training, or eval() and torch::NoGradGuard");
  TORCH_CHECK_VALUE(version() == merged_version_, "the weight or the adapters of '", name,
                    "' have changed since merge_lora, as by load_weights or an optimizer; call "
                    "unmerge_lora, and merge_lora again");
}

int64_t AdaptableLinearImpl::version() const {
  int64_t sum = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.is_inference()) sum += static_cast<int64_t>(tensor._version());
  };
  add(weight);
  for (const internal::LowRankAdapter& adapter : adapters_) {
    for (const at::Tensor& parameter : adapter->parameters()) add(parameter);
  }
  return sum;
}

void AdaptableLinearImpl::load(torch::serialize::InputArchive& archive) {
  TORCH_CHECK_VALUE(!is_merged(), "the adapters of '", adapters_.front()->shape().name,
                    "' are merged, and would stay those from before; call unmerge_lora before "
                    "torch::load");
  torch::nn::Module::load(archive);
}

void AdaptableLinearImpl::register_adapters(const std::vector<internal::AdapterShape>& shapes) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string name = shapes.size() == 1 ? "lora" : "lora" + std::to_string(i);
    adapters_.push_back(register_module(name, internal::LowRankAdapter(shapes[i], weight)));
    adapters_.back()->train(is_training());
  }
}

void AdaptableLinearImpl::add_adapters(std::vector<internal::AdapterShape> shapes) {
  TORCH_CHECK_VALUE(adapters_.empty(), "the layer of '", shapes.front().name,
                    "' has adapters already; take them away with merge_and_unload_lora or "
                    "unload_lora (models/lora.h)");
  register_adapters(shapes);
}

void AdaptableLinearImpl::merge_and_remove_adapters() {
  {
    const torch::NoGradGuard no_grad;
    for (const internal::LowRankAdapter& adapter : adapters_) adapter->merge_into(weight);
  }
  remove_adapters();
}

void AdaptableLinearImpl::remove_adapters() {
  unmerge();
  const size_t count = adapters_.size();
  for (size_t i = 0; i < count; ++i) {
    unregister_module(count == 1 ? "lora" : "lora" + std::to_string(i));
  }
  adapters_.clear();
}

void AdaptableLinearImpl::merge() {
  if (adapters_.empty() || is_merged()) return;
  const torch::NoGradGuard no_grad;
  at::Tensor sum = weight.detach().clone();
  for (const internal::LowRankAdapter& adapter : adapters_) adapter->merge_into(sum);
  merged_ = sum;
  merged_version_ = version();
}

}  // namespace gpipe::models
