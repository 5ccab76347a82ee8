#include "examples/language_model/network.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>

#include <cstdint>
#include <limits>

#include "examples/language_model/training.h"

namespace language_model {
namespace {

using gpipe::Tensors;

at::Tensor drawn(const at::Tensor& logits, double temperature, const at::Generator& generator) {
  // Tokens are drawn on the CPU, because the generator is there.
  const at::Tensor last = logits.select(1, -1).to(at::TensorOptions(at::kCPU).dtype(at::kFloat));
  if (temperature == 0) return last.argmax(-1);
  return at::multinomial((last / temperature).softmax(-1), 1, /*replacement=*/false, generator);
}

class Plain : public Network {
 public:
  Plain(const torch::nn::Sequential& model, bool bfloat16) : model_(model), bfloat16_(bfloat16) {}

  double step(const Batch& batch) override {
    const Autocast autocast(at::kCPU, bfloat16_);
    const at::Tensor loss = loss_of(batch);
    loss.backward();
    return loss.item<double>();
  }
  double evaluate(const Batch& batch) override {
    const torch::NoGradGuard no_grad;
    const Autocast autocast(at::kCPU, bfloat16_);
    return loss_of(batch).item<double>();
  }
  void clip(double norm) override { torch::nn::utils::clip_grad_norm_(model_->parameters(), norm); }
  std::vector<int64_t> draw(const Tensors& inputs, double temperature,
                            const at::Generator& generator) override {
    const torch::NoGradGuard no_grad;
    const Autocast autocast(at::kCPU, bfloat16_);
    const at::Tensor logits = model_->forward(inputs);
    std::vector<int64_t> tokens;
    for (int64_t row = 0; row < logits.size(0); ++row) {
      tokens.push_back(drawn(logits.narrow(0, row, 1), temperature, generator).item<int64_t>());
    }
    return tokens;
  }
  int64_t most_draws() const override { return std::numeric_limits<int64_t>::max(); }
  torch::nn::Module& module() override { return *model_; }
  std::vector<at::Tensor> parameters() override { return model_->parameters(); }
  void train(bool on) override { model_->train(on); }

 private:
  at::Tensor loss_of(const Batch& batch) {
    return mean_loss({model_->forward(Tensors{batch.ids, batch.documents})}, {batch.targets});
  }

  torch::nn::Sequential model_;
  bool bfloat16_;
};

class Pipeline : public Network {
 public:
  Pipeline(const gpipe::GPipe& pipe, const gpipe::StepOptions& options, bool bfloat16)
      : pipe_(pipe), options_(options), bfloat16_(bfloat16) {}

  double step(const Batch& batch) override {
    const Autocast autocast(first().type(), bfloat16_);
    return pipe_->step(inputs(batch), targets(batch), mean_loss, options_).loss;
  }
  double evaluate(const Batch& batch) override {
    const Autocast autocast(first().type(), bfloat16_);
    return pipe_->evaluate(inputs(batch), targets(batch), mean_loss, options_).loss;
  }
  void clip(double norm) override { pipe_->clip_grad_norm_(norm); }
  // The loss function draws, because all processes get to know its results, while the logits are in
  // the last process only. A micro-batch is a row, so that each row has a result of its own.
  std::vector<int64_t> draw(const Tensors& inputs, double temperature,
                            const at::Generator& generator) override {
    TORCH_CHECK_VALUE(inputs.at(0).size(0) <= most_draws(), "draw() was given ",
                      inputs.at(0).size(0), " rows, but takes at most ", most_draws(),
                      ": the first replica draws a token in each of its micro-batches");
    const Autocast autocast(first().type(), bfloat16_);
    const gpipe::LossFn draw_as_loss = [&](const Tensors& outputs, const Tensors& /*targets*/) {
      return drawn(outputs.at(0), temperature, generator).to(at::kDouble).squeeze();
    };
    Tensors there;
    for (const at::Tensor& input : inputs) there.push_back(own_rows(input).to(first()));
    std::vector<int64_t> tokens;
    for (const double token : pipe_->evaluate(there, {}, draw_as_loss).losses) {
      tokens.push_back(static_cast<int64_t>(token));
    }
    return tokens;
  }
  int64_t most_draws() const override { return pipe_->chunks() / pipe_->world().replicas(); }
  torch::nn::Module& module() override { return *pipe_; }
  std::vector<at::Tensor> parameters() override { return pipe_->local_parameters(); }
  void train(bool on) override { pipe_->train(on); }

 private:
  c10::Device first() const { return pipe_->devices().front(); }
  c10::Device last() const { return pipe_->devices().back(); }
  // The rows of this replica.
  at::Tensor own_rows(const at::Tensor& of_all) const {
    const gpipe::RowRange rows = pipe_->world().rows(of_all.size(0), pipe_->chunks());
    return of_all.narrow(0, rows.begin, rows.size());
  }
  Tensors inputs(const Batch& batch) const {
    return {own_rows(batch.ids).to(first()), own_rows(batch.documents).to(first())};
  }
  Tensors targets(const Batch& batch) const { return {own_rows(batch.targets).to(last())}; }

  gpipe::GPipe pipe_;
  gpipe::StepOptions options_;
  bool bfloat16_;
};

}  // namespace

std::unique_ptr<Network> make_plain(const torch::nn::Sequential& model, bool bfloat16) {
  return std::make_unique<Plain>(model, bfloat16);
}

std::unique_ptr<Network> make_pipeline(const gpipe::GPipe& pipe, const gpipe::StepOptions& options,
                                       bool bfloat16) {
  return std::make_unique<Pipeline>(pipe, options, bfloat16);
}

}  // namespace language_model
