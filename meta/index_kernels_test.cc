#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <gtest/gtest.h>

#include <vector>

#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

using at::indexing::Slice;
using testing::Case;
using testing::expect_same_on_meta;
using testing::Trial;
using Tensors = std::vector<at::Tensor>;

#define GPIPE_CASE(...)                                                  \
  {                                                                      \
#__VA_ARGS__, [](Trial & trial) -> Tensors { return {__VA_ARGS__}; } \
  }

TEST(IndexKernels, PickingIsAsOnTheCPU) {
  constexpr auto last = c10::MemoryFormat::ChannelsLast;
  expect_same_on_meta({
      GPIPE_CASE(at::index_select(trial.leaf({3, 4, 5}), 1, trial.integers(4, {7}))),
      GPIPE_CASE(at::index_select(trial.leaf({3, 4, 5, 6}, last), -1, trial.integers(4, {7}))),
      GPIPE_CASE(at::gather(trial.leaf({3, 4}), 1, trial.integers(4, {3, 2}))),
      GPIPE_CASE(at::scatter(trial.leaf({3, 4}), 1, trial.integers(4, {3, 2}), trial.leaf({3, 2}))),
      GPIPE_CASE(
          at::scatter_add(trial.leaf({3, 4}), 1, trial.integers(4, {3, 2}), trial.leaf({3, 2}))),
      GPIPE_CASE(trial.leaf({3, 4, 5}).index({trial.integers(3, {7})})),
      GPIPE_CASE(trial.leaf({3, 4, 5}).index({Slice(), trial.integers(4, {2, 6})})),
      GPIPE_CASE(at::index_put(trial.leaf({3, 4}),
                               c10::List<std::optional<at::Tensor>>({trial.integers(3, {2})}),
                               trial.leaf({2, 4}))),
      GPIPE_CASE(at::index_add(trial.leaf({3, 4}), 0, trial.integers(3, {2}), trial.leaf({2, 4}))),
      GPIPE_CASE(at::index_fill(trial.leaf({3, 4}), 0, trial.integers(3, {2}), 1)),
      GPIPE_CASE(at::index_copy(trial.leaf({3, 4}), 0, trial.integers(1, {1}), trial.leaf({1, 4}))),
      GPIPE_CASE(at::take(trial.leaf({3, 4}), trial.integers(12, {2, 5}))),
      GPIPE_CASE(at::take_along_dim(trial.leaf({3, 4}), trial.integers(4, {3, 2}), 1)),
      GPIPE_CASE(
          at::masked_scatter(trial.leaf({3, 4}), trial.data({3, 4}) > 0.5, trial.leaf({3, 4}))
              .detach()),
      GPIPE_CASE(trial.leaf({3, 4, 5}).index({0, Slice(1, 3)})),
      GPIPE_CASE(at::one_hot(trial.integers(4, {3}), 4)),
      GPIPE_CASE(at::bucketize(trial.data({3, 4}), trial.data({5}))),
      GPIPE_CASE(at::searchsorted(trial.data({5}), trial.data({3, 4}), true)),
      GPIPE_CASE(at::histc(trial.data({3, 4}), 7)),
      GPIPE_CASE(at::tril(trial.leaf({3, 4}))),
      GPIPE_CASE(at::diag(trial.leaf({3, 3}))),
      GPIPE_CASE(at::repeat_interleave(trial.leaf({3, 4}), 2, 1)),
      GPIPE_CASE(std::get<0>(at::sort(trial.leaf({3, 4, 5}), 1))),
      GPIPE_CASE(std::get<1>(at::sort(trial.leaf({3, 4, 5}), true, 1, true))),
      GPIPE_CASE(trial.leaf({3, 4, 5}).argsort(int64_t{1}, false)),
      GPIPE_CASE(std::get<0>(at::topk(trial.leaf({3, 4, 5}), 2, 1))),
      GPIPE_CASE(std::get<1>(at::topk(trial.leaf({3, 4, 5}), 2))),
  });
}

TEST(IndexKernels, MovingIsAsOnTheCPU) {
  constexpr auto last = c10::MemoryFormat::ChannelsLast;
  expect_same_on_meta({
      GPIPE_CASE(at::flip(trial.leaf({3, 4, 5}), {0, 2})),
      GPIPE_CASE(at::flip(trial.leaf({3, 4, 5, 6}, last), {1})),
      GPIPE_CASE(at::flip(trial.leaf({3, 4, 5}).transpose(0, 1), {1})),
      GPIPE_CASE(at::rot90(trial.leaf({3, 4}))),
      GPIPE_CASE(at::roll(trial.leaf({3, 4, 5}), 2, 1)),
      GPIPE_CASE(at::roll(trial.leaf({3, 4, 5}), {2, 1}, {1, 2})),
      GPIPE_CASE(at::roll(trial.leaf({3, 4, 5}), 7)),
      GPIPE_CASE(at::cat({trial.leaf({3, 4}), trial.leaf({3, 2})}, 1)),
      GPIPE_CASE(at::cat({trial.leaf({3, 4, 5, 6}, last), trial.leaf({3, 2, 5, 6}, last)}, 1)),
      GPIPE_CASE(at::stack({trial.leaf({3, 4}), trial.leaf({3, 4})}, 1)),
      GPIPE_CASE(at::chunk(trial.leaf({4, 6}), 3, 1)[1]),
      GPIPE_CASE(at::split(trial.leaf({4, 6}), 4, 1)[1]),
      GPIPE_CASE(at::unbind(trial.leaf({4, 6}), 1)[1]),
      GPIPE_CASE(trial.leaf({2, 3, 4}).flatten(1)),
      GPIPE_CASE(trial.leaf({2, 3, 4}).permute({2, 0, 1}).reshape({4, 6})),
      GPIPE_CASE(trial.leaf({2, 3, 4}).transpose(1, 2).contiguous()),
      GPIPE_CASE(trial.leaf({2, 3, 4}).repeat({2, 1, 3})),
      GPIPE_CASE(trial.leaf({2, 1, 4}).expand({2, 3, 4})),
      GPIPE_CASE(trial.leaf({2, 9}).unfold(1, 3, 2)),
      GPIPE_CASE(at::squeeze(trial.leaf({2, 1, 4})).unsqueeze(0)),
      GPIPE_CASE(at::select(trial.leaf({2, 3, 4}), 1, 1)),
      GPIPE_CASE(at::as_strided(trial.leaf({12}), {2, 3}, {1, 2})),
      GPIPE_CASE(at::einsum("bij,bjk->bik", {trial.leaf({2, 3, 4}), trial.leaf({2, 4, 5})})),
      GPIPE_CASE(at::matmul(trial.leaf({2, 3, 4}), trial.leaf({4, 5}))),
      GPIPE_CASE(at::baddbmm(trial.leaf({3, 5}), trial.leaf({2, 3, 4}), trial.leaf({2, 4, 5}))),
      GPIPE_CASE(at::mv(trial.leaf({3, 4}), trial.leaf({4}))),
  });
}

TEST(EmbeddingKernels, AreAsOnTheCPU) {
  std::vector<Case> cases = {
      GPIPE_CASE(at::embedding(trial.leaf({9, 4}), trial.integers(9, {2, 3}))),
      GPIPE_CASE(
          at::embedding(trial.leaf({9, 4}), trial.integers(9, {2, 3}).to(at::kInt), 1, true)),
  };
  for (const int64_t mode : {0, 1, 2}) {
    for (const bool ends : {false, true}) {
      for (const int64_t padding : {-1, 2}) {
        for (const bool needs_grad : {false, true}) {
          for (const auto type : {at::kFloat, at::kDouble}) {
            cases.push_back({c10::str("bag ", mode, ends, padding, needs_grad, type),
                             [=](Trial& trial) -> Tensors {
                               const at::Tensor weight =
                                   needs_grad ? trial.leaf({9, 4}, type) : trial.data({9, 4}, type);
                               at::Tensor offsets = trial.integers(1, {3});
                               if (ends && !trial.on_meta()) offsets[2] = 7;
                               const at::Tensor scale =
                                   mode == 0 ? trial.leaf({7}, type) : at::Tensor();
                               const auto [y, bags, sizes, maxima] =
                                   at::embedding_bag(weight, trial.integers(9, {7}), offsets, false,
                                                     mode, false, scale, ends, padding);
                               return {y, bags, sizes, maxima};
                             }});
          }
        }
      }
    }
  }
  expect_same_on_meta(cases);
}

}  // namespace
}  // namespace gpipe
