// HeadLoss: a language model's head and its cross entropy together, in pieces of rows, without all
// logits at once.
#ifndef MODELS_HEAD_LOSS_H_
#define MODELS_HEAD_LOSS_H_

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gpipe::models {

struct HeadLossOptions {
  // How many tokens' logits there are at a time. Fewer take less memory, and are slower below some
  // hundred. Default: 1024.
  TORCH_ARG(int64_t, tokens_per_piece) = 1024;
  // Targets of this number do not count. Default: -100, as in LibTorch.
  TORCH_ARG(int64_t, ignore_index) = -100;
  // Logits become cap * tanh(logit / cap). A HeadLoss takes its head's. Default: 0, they do not.
  TORCH_ARG(double, soft_cap) = 0;
};

// The mean cross entropy of the logits `vectors * matrix^T` over the targets that count: what
// cross_entropy(linear(vectors, matrix).flatten(0, -2), targets.flatten()) gives. If none
// counts it is NaN, and the gradients are zeros. `vectors`: (..., width); `matrix`: (words, width);
// `targets`: (...), whole numbers.
//
// The gradients are computed with the loss, so that no product is computed twice; the backward, of
// which there can be one, multiplies them with the gradient that it is given. Beside the arguments
// and their gradients there are logits of one piece. Sums over the pieces round apart from those of
// one piece: for types below float32 they, the softmax, and until the backward the gradients, are
// in float32, so that a scaled loss does not come too late for float16.
//
// Throws c10::ValueError for shapes or types that do not fit and for less than one token per piece;
// c10::Error from a second backward, and from one that wants a graph of its own.
at::Tensor head_cross_entropy(const at::Tensor& vectors, const at::Tensor& matrix,
                              const at::Tensor& targets, const HeadLossOptions& options = {});

// The loss function of a transformer with TransformerOptions::head_in_loss, for the plain model as
// for a pipeline. The matrix is still the head's (or the embedding's that it is tied to): in
// parameters(), in saved files, on the head's device.
//
// Guarantees: for a given number of tokens per piece, loss and gradients of a pipeline are bitwise
// those of the plain model run micro-batch by micro-batch, as with any loss function.
//
// Example:
//   auto model = transformer(gpt2_small().head_in_loss(true));
//   HeadLoss loss(model->ptr(model->size() - 1));
//   GPipe pipe(model, ...);
//   pipe->step({ids}, {next_ids}, loss);  // with padding: StepOptions::weight, as ever
class HeadLoss {
 public:
  // `head`: the model's last layer. Throws c10::ValueError if it is not the last layer of a
  // transformer with head_in_loss.
  explicit HeadLoss(std::shared_ptr<torch::nn::Module> head, const HeadLossOptions& options = {});

  at::Tensor operator()(const std::vector<at::Tensor>& outputs,
                        const std::vector<at::Tensor>& targets) const;

  // (N, T, vocab_size), of what the model gives, for evaluation and sampling.
  at::Tensor logits(const at::Tensor& output) const;

 private:
  std::shared_ptr<torch::nn::Module> head_;
  HeadLossOptions options_;
};

}  // namespace gpipe::models

#endif  // MODELS_HEAD_LOSS_H_
