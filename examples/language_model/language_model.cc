// A language model over padded sentences of different lengths: one step of a pipeline gives the
// gradients of the unpartitioned model, because each micro-batch counts by its tokens.

#include <torch/torch.h>

#include <cmath>
#include <iostream>

#include "gpipe/gpipe.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kWords = 50;
constexpr int64_t kPadding = -100;

nn::Sequential make_model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Embedding(kWords, 16), nn::Linear(16, 64), nn::Tanh(),
                        nn::Linear(64, kWords));
}

// (N, T, kWords) and (N, T): the mean over the tokens that are not padding.
torch::Tensor loss_fn(const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
  return F::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten(),
                          F::CrossEntropyFuncOptions().ignore_index(kPadding));
}

double count_tokens(const gpipe::Tensors& targets) {
  return targets.at(0).ne(kPadding).sum().item<double>();
}

}  // namespace

int main() {
  nn::Sequential plain = make_model();
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 2}).chunks(4));

  torch::Tensor words = torch::randint(kWords, {14, 9});
  torch::Tensor next = torch::randint(kWords, {14, 9});
  for (int64_t n = 0; n < next.size(0); ++n) next[n].slice(0, n * 9 / 14).fill_(kPadding);

  torch::Tensor want = loss_fn({plain->forward(words)}, {next});
  want.backward();
  auto options = gpipe::StepOptions().weight(count_tokens);
  double have = pipe->step({words}, {next}, loss_fn, options).loss;

  double worst = 0;
  auto gradients = pipe->named_parameters();
  for (auto& parameter : plain->named_parameters()) {
    auto difference = gradients[parameter.key()].grad() - parameter.value().grad();
    worst = std::fmax(worst, difference.abs().max().item<double>());
  }
  std::cout << "loss " << have << ", unpartitioned " << want.item<double>()
            << ", gradients differ by at most " << worst << "\n";
  return std::fabs(have - want.item<double>()) < 1e-5 && worst < 1e-6 ? 0 : 1;
}
