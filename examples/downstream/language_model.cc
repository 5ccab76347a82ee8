#include "language_model.h"

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include "models/kv_cache.h"
#include "models/transformer.h"

namespace {

constexpr int64_t kLength = 64;  // the number of tokens that the model sees
constexpr int64_t kRows = 8;     // the rows of a mini-batch
constexpr int64_t kChunks = 4;

torch::nn::Sequential model() {
  return gpipe::models::transformer(
      gpipe::models::TransformerOptions(gpipe::models::TransformerKind::kLlama)
          .vocab_size(256)
          .num_layers(4)
          .hidden_size(64)
          .num_heads(4)
          .intermediate_size(192)
          .packed(true));  // a KvCache needs this
}

gpipe::GPipe make(const std::vector<int64_t>& balance) {
  torch::manual_seed(0);
  return gpipe::GPipe(model(),
                      gpipe::GPipeOptions(balance).chunks(kChunks).cpu_threads_per_stage(1));
}

torch::Tensor loss_fn(const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
  return torch::nn::functional::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
}

torch::Tensor bytes_of(const std::string& text) {
  return torch::tensor(std::vector<uint8_t>(text.begin(), text.end())).to(torch::kLong);
}

}  // namespace

gpipe::balance::Training make_model() {
  gpipe::balance::Training training;
  training.make = model;
  const torch::Tensor ids = torch::randint(256, {kRows, kLength});
  training.inputs = {ids, torch::zeros_like(ids)};
  training.targets = {ids};
  training.loss = loss_fn;
  training.name = "bytes";
  return training;
}

LanguageModel::LanguageModel(const std::string& text, const std::vector<int64_t>& balance)
    : text_(bytes_of(text)), pipe_(make(balance)) {}

std::vector<double> LanguageModel::train(int64_t steps) {
  torch::optim::AdamW optimizer(pipe_->parameters(), torch::optim::AdamWOptions(3e-3));
  std::vector<double> losses;
  pipe_->train();
  for (int64_t step = 0; step < steps; ++step) {
    const torch::Tensor begins = torch::randint(text_.size(0) - kLength, {kRows, 1});
    const torch::Tensor places = begins + torch::arange(kLength);
    const torch::Tensor ids = text_.index({places}), next = text_.index({places + 1});
    optimizer.zero_grad();
    // Each row is one document, so all tokens have the document number 0.
    losses.push_back(pipe_->step({ids, torch::zeros_like(ids)}, {next}, loss_fn).loss);
    pipe_->clip_grad_norm_(1.0);
    optimizer.step();
  }
  return losses;
}

std::vector<std::string> LanguageModel::write(const std::vector<std::string>& prompts,
                                              int64_t bytes) {
  const torch::NoGradGuard no_grad;
  pipe_->eval();
  std::vector<torch::Tensor> rows;
  for (const std::string& prompt : prompts) rows.push_back(bytes_of(prompt));
  torch::Tensor next = torch::stack(rows);
  gpipe::models::KvCache cache(*pipe_, next.size(0), next.size(1) + bytes);
  std::vector<std::string> texts = prompts;
  for (int64_t k = 0; k < bytes; ++k) {
    next = pipe_->forward(cache.inputs(next))[0].select(1, -1).argmax(-1, /*keepdim=*/true);
    for (size_t row = 0; row < texts.size(); ++row) {
      texts[row] += static_cast<char>(next[static_cast<int64_t>(row)].item<int64_t>());
    }
  }
  return texts;
}
