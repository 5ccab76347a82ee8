// HeadLoss: a language model's head and its cross entropy, computed together in pieces of rows, so
// that never all logits exist at once.
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
  // The number of tokens whose logits exist at a time. Fewer take less memory; below a few hundred
  // they are slower. Default: 1024.
  TORCH_ARG(int64_t, tokens_per_piece) = 1024;
  // Targets with this value do not count. Default: -100, as in LibTorch.
  TORCH_ARG(int64_t, ignore_index) = -100;
  // Logits become cap * tanh(logit / cap). HeadLoss takes the cap of its head. Default: 0, no cap.
  TORCH_ARG(double, soft_cap) = 0;
};

// The mean cross entropy of the logits `vectors * matrix^T` over the targets that count: the result
// of cross_entropy(linear(vectors, matrix).flatten(0, -2), targets.flatten()). If no target counts,
// it is NaN, and the gradients are zeros. `vectors`: (..., width); `matrix`: (words, width);
// `targets`: (...), whole numbers.
//
// The gradients are computed with the loss, so that no product is computed twice. The backward,
// which can run only once, multiplies them with the gradient of the loss. Besides the arguments and
// their gradients, memory holds the logits of one piece. Sums over several pieces round differently
// from the sum over one. For types below float32, these sums, the softmax, and (until the backward)
// the gradients are in float32, so that a scaled loss does not come too late for float16.
//
// Throws c10::ValueError for shapes or types that do not fit and for less than one token per piece;
// c10::Error from a second backward, and from one with create_graph.
at::Tensor head_cross_entropy(const at::Tensor& vectors, const at::Tensor& matrix,
                              const at::Tensor& targets, const HeadLossOptions& options = {});

// The loss function of a transformer with TransformerOptions::head_in_loss, for the plain model and
// for a pipeline. The matrix still belongs to the head (or to the embedding to which the head is
// tied): in parameters(), in saved files, on the head's device.
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

  // Returns the logits, (N, T, vocab_size), of the model's output, for evaluation and sampling.
  at::Tensor logits(const at::Tensor& output) const;

 private:
  std::shared_ptr<torch::nn::Module> head_;
  HeadLossOptions options_;
};

}  // namespace gpipe::models

#endif  // MODELS_HEAD_LOSS_H_
