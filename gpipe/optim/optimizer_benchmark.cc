// Measures torch::optim's optimizers and the fused ones, in turns, over the shapes of GPT-2 124M
// and of the language model of examples/language_model. The counter `torch / fused` is the ratio of
// their times.
#include <benchmark/benchmark.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "gpipe/optim/fused.h"

namespace {

// Returns parameters with the shapes of a transformer: embeddings, then two norms, attention and
// feed-forward for each block, then a last norm.
std::vector<at::Tensor> transformer(int64_t vocabulary, int64_t positions, int64_t width,
                                    int64_t blocks) {
  std::vector<at::Tensor> result;
  const auto add = [&](std::vector<int64_t> sizes) {
    result.push_back(torch::randn(sizes).requires_grad_());
    result.back().mutable_grad() = torch::randn(sizes);
  };
  add({vocabulary, width});
  add({positions, width});
  for (int64_t k = 0; k < blocks; ++k) {
    for (const int64_t outputs : {3 * width, width}) {
      add({outputs, width});
      add({outputs});
    }
    add({4 * width, width});
    add({4 * width});
    add({width, 4 * width});
    for (int64_t n = 0; n < 5; ++n) add({width});
  }
  add({width});
  add({width});
  return result;
}

double seconds(torch::optim::Optimizer& optimizer) {
  const auto begin = std::chrono::steady_clock::now();
  optimizer.step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <typename Plain, typename Fused, typename Options>
void compare(benchmark::State& state, const Options& options) {
  const bool is_gpt2 = state.range(0) == 1;
  const auto parameters = [&] {
    return is_gpt2 ? transformer(50257, 1024, 768, 12) : transformer(256, 128, 64, 2);
  };
  Plain plain(parameters(), options);
  Fused fused(parameters(), options);
  (void)seconds(plain);  // The first step makes the states, so it is not measured.
  (void)seconds(fused);
  double of_plain = 0;
  double of_fused = 0;
  for (auto _ : state) {
    of_plain += seconds(plain);
    of_fused += seconds(fused);
  }
  state.counters["torch / fused"] = of_plain / of_fused;
}

void adamw(benchmark::State& state) {
  compare<torch::optim::AdamW, gpipe::FusedAdamW>(state, torch::optim::AdamWOptions(1e-3));
}
void sgd(benchmark::State& state) {
  compare<torch::optim::SGD, gpipe::FusedSgd>(state, torch::optim::SGDOptions(0.1).momentum(0.9));
}
// The argument 0 stands for the language model, 1 for GPT-2 124M.
BENCHMARK(adamw)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK(sgd)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
