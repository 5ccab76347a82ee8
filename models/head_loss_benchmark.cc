// Memory and time of a language model's head and its cross entropy, with all logits at once and in
// pieces of tokens: the smallest GPT-2's vocabulary and width, forward and backward.
//
//   tools/bazel run //models:head_loss_benchmark

#include <ATen/Functions.h>
#include <benchmark/benchmark.h>

#include <cstdint>

#include "gpipe/testing/live_memory.h"
#include "models/head_loss.h"

namespace gpipe::models {
namespace {

constexpr int64_t kTokens = 2048, kWords = 50257, kWidth = 768;

// The argument is the number of tokens in a piece; 0 means all logits at once, with LibTorch's
// cross entropy. `MiB` is the largest memory beside vectors and matrix, including the gradients of
// both.
void BM_HeadLoss(benchmark::State& state) {
  testing::count_live_memory();
  const int64_t piece = state.range(0);
  at::Tensor vectors = at::randn({kTokens, kWidth}).requires_grad_();
  at::Tensor matrix = (at::randn({kWords, kWidth}) * 0.02).requires_grad_();
  const at::Tensor targets = at::randint(kWords, {kTokens}, at::kLong);
  const int64_t before = testing::live_bytes();
  testing::reset_peak_bytes();
  for (auto _ : state) {
    vectors.mutable_grad() = at::Tensor();
    matrix.mutable_grad() = at::Tensor();
    const at::Tensor loss = piece == 0
                                ? at::cross_entropy_loss(at::linear(vectors, matrix), targets)
                                : head_cross_entropy(vectors, matrix, targets,
                                                     HeadLossOptions().tokens_per_piece(piece));
    loss.backward();
  }
  state.counters["MiB"] = static_cast<double>(testing::peak_bytes() - before) / (1 << 20);
}
BENCHMARK(BM_HeadLoss)
    ->ArgName("piece")
    ->Arg(0)
    ->RangeMultiplier(2)
    ->Range(128, 2048)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpipe::models
