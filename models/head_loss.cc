#include "models/head_loss.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/blocks/transformer_layers.h"

namespace gpipe::models {
namespace {

struct Wanted {
  bool vectors, matrix;
};

struct Results {
  at::Tensor loss;    // the mean over `number` targets
  at::Tensor number;  // how many targets count
  // The gradients of the sum of the losses; undefined where none is wanted. For types below float32
  // they are float32, as the sum is: in float16 the gradients of the mean would be 0 before a
  // scaled loss makes them large.
  at::Tensor vectors, matrix;
};

// `vectors` is (tokens, width), `targets` (tokens).
Results compute(const at::Tensor& vectors, const at::Tensor& matrix, const at::Tensor& targets,
                const HeadLossOptions& options, Wanted wanted) {
  const at::ScalarType sums = at::toOpMathType(vectors.scalar_type());
  const int64_t tokens = vectors.size(0), piece = options.tokens_per_piece();
  const at::Tensor ignored = targets.eq(options.ignore_index()).unsqueeze(1);
  // A target that does not count may be outside the classes, so it is replaced by class 0.
  const at::Tensor classes = targets.unsqueeze(1).masked_fill(ignored, 0);
  Results results;
  results.number = ignored.logical_not().sum().to(sums);
  results.loss = at::zeros({}, vectors.options().dtype(sums));
  if (wanted.vectors) {
    results.vectors = at::empty(vectors.sizes(), vectors.options().dtype(sums));
  }
  if (wanted.matrix) results.matrix = at::zeros(matrix.sizes(), matrix.options().dtype(sums));
  for (int64_t begin = 0; begin < tokens; begin += piece) {
    const int64_t end = std::min(begin + piece, tokens);
    const at::Tensor x = vectors.slice(0, begin, end), target = classes.slice(0, begin, end),
                     skipped = ignored.slice(0, begin, end);
    at::Tensor logits = at::linear(x, matrix).to(sums), slope;
    if (options.soft_cap() > 0) {
      const at::Tensor bent = logits.div_(options.soft_cap()).tanh_();
      if (wanted.vectors || wanted.matrix) slope = 1 - bent * bent;
      logits = bent * options.soft_cap();
    }
    const at::Tensor log_sums = logits.logsumexp(1, /*keepdim=*/true);
    // A loss that does not count is filled with 0, not multiplied by 0, because it may be infinite.
    results.loss += (log_sums - logits.gather(1, target)).masked_fill_(skipped, 0).sum();
    if (!wanted.vectors && !wanted.matrix) continue;
    // The gradient of the logits is computed in place of the logits.
    logits.sub_(log_sums).exp_().scatter_add_(
        1, target, at::full({1, 1}, -1, logits.options()).expand_as(target));
    if (slope.defined()) logits.mul_(slope);
    logits.masked_fill_(skipped, 0);
    const at::Tensor gradient = logits.to(vectors.scalar_type());
    if (wanted.vectors) results.vectors.slice(0, begin, end).copy_(gradient.matmul(matrix));
    if (!wanted.matrix) continue;
    if (sums == matrix.scalar_type()) {
      results.matrix.addmm_(gradient.t(), x);
    } else {
      results.matrix += gradient.t().matmul(x);
    }
  }
  results.loss = (results.loss / results.number).to(vectors.scalar_type());
  return results;
}

class HeadLossFunction : public torch::autograd::Function<HeadLossFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& vectors,
                            const at::Tensor& matrix, const at::Tensor& targets,
                            const HeadLossOptions& options, Wanted wanted) {
    Results results = compute(vectors.reshape({-1, vectors.size(-1)}), matrix,
                              targets.reshape({-1}), options, wanted);
    if (wanted.vectors) results.vectors = results.vectors.view(vectors.sizes());
    context->saved_data[kNumber] = results.number;
    context->saved_data[kVectors] = results.vectors;
    context->saved_data[kMatrix] = results.matrix;
    return results.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    TORCH_CHECK(!torch::GradMode::is_enabled(),
                "head_cross_entropy has no second derivatives; call backward without create_graph");
    const auto take = [&](size_t input, const char* name) {
      // A split backward asks for the gradients of `vectors` and `matrix` in two calls.
      if (!context->needs_input_grad(input)) return at::Tensor();
      const auto found = context->saved_data.find(name);
      TORCH_CHECK(found != context->saved_data.end(),
                  "head_cross_entropy gives its gradients away; compute it again for a second "
                  "backward");
      at::Tensor gradient = std::move(found->second).toTensor();
      context->saved_data.erase(found);
      const at::Tensor number = context->saved_data.at(kNumber).toTensor();
      // If no target counts, the loss is NaN and the gradients are zeros, as in LibTorch.
      const at::Tensor factor =
          (gradients[0].to(gradient.scalar_type()) / number).masked_fill_(number.eq(0), 0);
      // The gradient is scaled in place, because the matrix's gradient may be larger than all
      // logits of a piece.
      return gradient.mul_(factor).to(gradients[0].scalar_type());
    };
    return {take(0, kVectors), take(1, kMatrix), {}, {}, {}};
  }

 private:
  static constexpr const char* kNumber = "number";
  static constexpr const char* kVectors = "vectors";
  static constexpr const char* kMatrix = "matrix";
};

}  // namespace

at::Tensor head_cross_entropy(const at::Tensor& vectors, const at::Tensor& matrix,
                              const at::Tensor& targets, const HeadLossOptions& options) {
  TORCH_CHECK_VALUE(options.tokens_per_piece() > 0, "tokens_per_piece must be at least 1, got ",
                    options.tokens_per_piece());
  TORCH_CHECK_VALUE(vectors.dim() > 0 && matrix.dim() == 2 && vectors.size(-1) == matrix.size(1) &&
                        vectors.is_floating_point() &&
                        vectors.scalar_type() == matrix.scalar_type(),
                    "vectors must be [..., width] and the matrix [words, width], of one "
                    "floating-point type, got ",
                    vectors.scalar_type(), " of shape ", vectors.sizes(), " and ",
                    matrix.scalar_type(), " of shape ", matrix.sizes());
  TORCH_CHECK_VALUE(targets.sizes() == vectors.sizes().slice(0, vectors.dim() - 1) &&
                        targets.scalar_type() == at::kLong,
                    "targets must be Long of shape ", vectors.sizes().slice(0, vectors.dim() - 1),
                    ", got ", targets.scalar_type(), " of shape ", targets.sizes());
  TORCH_CHECK_VALUE(options.soft_cap() >= 0 && std::isfinite(options.soft_cap()),
                    "soft_cap must be a positive number, or 0 for none, got ", options.soft_cap());
  const bool recording = torch::GradMode::is_enabled();
  return HeadLossFunction::apply(
      vectors, matrix, targets, options,
      Wanted{recording && vectors.requires_grad(), recording && matrix.requires_grad()});
}

HeadLoss::HeadLoss(std::shared_ptr<torch::nn::Module> head, const HeadLossOptions& options)
    : head_(std::move(head)), options_(options) {
  const auto* layer = head_ == nullptr ? nullptr : head_->as<internal::TokenHead>();
  TORCH_CHECK_VALUE(layer != nullptr && layer->in_loss(),
                    "HeadLoss needs the last layer of a transformer with head_in_loss(true), got ",
                    head_ == nullptr   ? "none"
                    : layer != nullptr ? "one without"
                                       : head_->name());
  options_.soft_cap(layer->soft_cap());
}

at::Tensor HeadLoss::operator()(const std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& targets) const {
  const at::Tensor& vectors = outputs.at(0);
  return head_cross_entropy(vectors, head_->as<internal::TokenHead>()->matrix_for(vectors),
                            targets.at(0), options_);
}

at::Tensor HeadLoss::logits(const at::Tensor& output) const {
  return head_->as<internal::TokenHead>()->logits(output);
}

}  // namespace gpipe::models
