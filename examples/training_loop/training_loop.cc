// A whole training loop: epochs with clipped gradients, evaluation, a checkpoint after each epoch,
// and a second run that resumes from a checkpoint and ends with the same weights.

#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "gpipe/clip_grad.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kEpochs = 4;
constexpr int64_t kSteps = 20;  // the number of steps of an epoch
constexpr int64_t kRows = 8;
constexpr int64_t kWords = 20;

// The output layer reads the embedding's weight. The weight is registered once, by the first of the
// two layers: a tensor that is registered twice is listed twice, and an optimizer would step it
// twice.
struct TiedHeadImpl : nn::Module {
  explicit TiedHeadImpl(torch::Tensor weight) : weight(std::move(weight)) {}
  torch::Tensor forward(torch::Tensor x) { return F::linear(x, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(TiedHead);

nn::Sequential make_model() {
  torch::manual_seed(0);
  nn::Embedding words(kWords, 16);
  return nn::Sequential(words, nn::Linear(16, 16), nn::GELU(), nn::Dropout(0.1),
                        TiedHead(words->weight));
}

torch::Tensor loss_fn(const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
  return F::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
}

// The rule to learn: the next word is the word times 3.
torch::Tensor batch(int64_t number) {
  torch::manual_seed(1000 + number);
  return torch::randint(kWords, {kRows, 6});
}

double accuracy(gpipe::GPipe& pipe) {
  torch::NoGradGuard no_grad;
  pipe->eval();
  const torch::Tensor words = batch(-1);
  const torch::Tensor guessed = pipe->forward(words).argmax(-1);
  pipe->train();
  return guessed.eq(words * 3 % kWords).to(torch::kFloat).mean().item<double>();
}

// Trains from the end of epoch `from` (0: from the start) to the end.
gpipe::GPipe train(int64_t from, const std::filesystem::path& folder) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
  torch::optim::AdamW optimizer(pipe->parameters(), torch::optim::AdamWOptions(0.02));
  const auto checkpoint = [&](int64_t epoch) {
    return (folder / ("training_loop_epoch_" + std::to_string(epoch))).string();
  };
  if (from > 0) gpipe::load_checkpoint(pipe, optimizer, checkpoint(from));
  for (int64_t epoch = from + 1; epoch <= kEpochs; ++epoch) {
    for (int64_t k = 0; k < kSteps; ++k) {
      const torch::Tensor words = batch(100 * epoch + k);
      optimizer.zero_grad();
      pipe->step({words}, {words * 3 % kWords}, loss_fn);
      gpipe::clip_grad_norm_(pipe->parameters(), 1.0);
      optimizer.step();
    }
    // If a run is interrupted, the whole checkpoint of the previous epoch remains.
    const gpipe::Progress progress{/*step=*/kSteps * epoch, /*rows=*/kSteps * kRows * epoch};
    gpipe::save_checkpoint(pipe, optimizer, progress, checkpoint(epoch));
  }
  return pipe;
}

}  // namespace

int main() {
  const char* scratch = std::getenv("TEST_TMPDIR");
  const std::filesystem::path folder = scratch != nullptr ? scratch : "/tmp";
  gpipe::GPipe whole = train(0, folder);
  gpipe::GPipe resumed = train(kEpochs / 2, folder);
  bool same = true;
  const auto weights = resumed->named_parameters();
  for (const auto& parameter : whole->named_parameters()) {
    same = same && parameter.value().equal(weights[parameter.key()]);
  }
  const double right = accuracy(whole);
  std::cout << "accuracy " << right << ", a resumed run ends with " << (same ? "the same" : "OTHER")
            << " weights\n";
  return same && right > 0.9 ? 0 : 1;
}
