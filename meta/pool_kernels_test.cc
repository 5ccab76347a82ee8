#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

using testing::Case;
using testing::expect_same_on_meta;
using testing::Trial;
using Tensors = std::vector<at::Tensor>;

// An image of 1 to 3 dimensions: contiguous, with channels last, without a batch.
struct Input {
  int64_t rank;
  std::vector<int64_t> sizes;
  c10::MemoryFormat format = c10::MemoryFormat::Contiguous;

  at::Tensor leaf(Trial& trial) const { return trial.leaf(sizes, format); }
  std::string text() const { return c10::str(" of ", c10::IntArrayRef(sizes), format); }
  // A list that has `value` for each dimension of space.
  std::vector<int64_t> all(int64_t value) const { return std::vector<int64_t>(rank, value); }
};

const std::vector<Input> kInputs = {
    {1, {2, 4, 9}},
    {1, {4, 9}},
    {2, {2, 4, 9, 8}},
    {2, {4, 9, 8}},
    {2, {2, 4, 9, 8}, c10::MemoryFormat::ChannelsLast},
    {3, {2, 4, 9, 8, 7}},
    {3, {4, 9, 8, 7}},
    {3, {2, 4, 9, 8, 7}, c10::MemoryFormat::ChannelsLast3d},
};

TEST(PoolKernels, MaxAndAverageAreAsOnTheCPU) {
  std::vector<Case> cases;
  for (const Input& input : kInputs) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t padding : {0, 1}) {
        for (const bool ceil : {false, true}) {
          const std::string case_text =
              c10::str(input.text(), " stride ", stride, " padding ", padding, ceil);
          for (const int64_t dilation : {1, 2}) {
            cases.push_back(
                {c10::str("max", case_text, " dilation ", dilation), [=](Trial& trial) -> Tensors {
                   const at::Tensor x = input.leaf(trial);
                   const auto k = input.all(3), s = input.all(stride), p = input.all(padding),
                              d = input.all(dilation);
                   const auto [y, places] =
                       input.rank == 1   ? at::max_pool1d_with_indices(x, k, s, p, d, ceil)
                       : input.rank == 2 ? at::max_pool2d_with_indices(x, k, s, p, d, ceil)
                                         : at::max_pool3d_with_indices(x, k, s, p, d, ceil);
                   return {y, places};
                 }});
          }
          cases.push_back({"average" + case_text, [=](Trial& trial) -> Tensors {
                             const at::Tensor x = input.leaf(trial);
                             const auto k = input.all(3), s = input.all(stride),
                                        p = input.all(padding);
                             return {input.rank == 1   ? at::avg_pool1d(x, k, s, p, ceil, false)
                                     : input.rank == 2 ? at::avg_pool2d(x, k, s, p, ceil, false)
                                                       : at::avg_pool3d(x, k, s, p, ceil, false)};
                           }});
        }
      }
    }
  }
  expect_same_on_meta(cases);
}

TEST(PoolKernels, AdaptiveOnesAreAsOnTheCPU) {
  std::vector<Case> cases;
  for (const Input& input : kInputs) {
    for (const int64_t size : {1, 3, 5}) {
      const std::string case_text = c10::str(input.text(), " to ", size);
      cases.push_back({"average" + case_text, [=](Trial& trial) -> Tensors {
                         const at::Tensor x = input.leaf(trial);
                         const auto out = input.all(size);
                         return {input.rank == 1   ? at::adaptive_avg_pool1d(x, out)
                                 : input.rank == 2 ? at::adaptive_avg_pool2d(x, out)
                                                   : at::adaptive_avg_pool3d(x, out)};
                       }});
      cases.push_back({"max" + case_text, [=](Trial& trial) -> Tensors {
                         const at::Tensor x = input.leaf(trial);
                         const auto out = input.all(size);
                         const auto [y, places] = input.rank == 1 ? at::adaptive_max_pool1d(x, out)
                                                  : input.rank == 2
                                                      ? at::adaptive_max_pool2d(x, out)
                                                      : at::adaptive_max_pool3d(x, out);
                         return {y, places};
                       }});
    }
  }
  expect_same_on_meta(cases);
}

TEST(PoolKernels, UnpoolingAndFractionsAreAsOnTheCPU) {
  std::vector<Case> cases;
  for (const Input& input : kInputs) {
    if (input.rank == 1) continue;
    cases.push_back({"unpool" + input.text(), [=](Trial& trial) -> Tensors {
                       const at::Tensor x = input.leaf(trial);
                       const int64_t space = x.dim() - input.rank;
                       const auto two = input.all(2), size = x.sizes().slice(space).vec();
                       const auto [y, places] = input.rank == 2
                                                    ? at::max_pool2d_with_indices(x, two, two)
                                                    : at::max_pool3d_with_indices(x, two, two);
                       return {input.rank == 2
                                   ? at::max_unpool2d(y, places, size)
                                   : at::max_unpool3d(y, places, size, two, input.all(0))};
                     }});
    if (input.format != c10::MemoryFormat::Contiguous) continue;
    cases.push_back(
        {"fractional" + input.text(), [=](Trial& trial) -> Tensors {
           const at::Tensor x = input.leaf(trial);
           const bool batch = x.dim() == input.rank + 2;
           const at::Tensor samples = trial.data({batch ? x.size(0) : 1, 4, input.rank});
           const auto [y, places] =
               input.rank == 2 ? at::fractional_max_pool2d(x, {2, 2}, {3, 3}, samples)
                               : at::fractional_max_pool3d(x, {2, 2, 2}, {3, 3, 3}, samples);
           return {y, places};
         }});
  }
  expect_same_on_meta(cases);
}

TEST(PaddingKernels, AreAsOnTheCPU) {
  std::vector<Case> cases;
  for (const Input& input : kInputs) {
    const std::vector<int64_t> padding = {1, 2, 2, 1, 0, 3};
    const std::vector<int64_t> all(padding.begin(), padding.begin() + 2 * input.rank);
    for (const char* mode : {"constant", "reflect", "replicate", "circular"}) {
      // With channels last, "replicate" and three-dimensional "reflect" are left out, because
      // LibTorch's own meta forms of them do not keep the format as the CPU does.
      if (input.format != c10::MemoryFormat::Contiguous && mode != std::string("constant") &&
          mode != std::string("circular") && (mode != std::string("reflect") || input.rank == 3)) {
        continue;
      }
      cases.push_back({mode + input.text(), [=](Trial& trial) -> Tensors {
                         return {at::pad(input.leaf(trial), all, mode)};
                       }});
    }
    cases.push_back({"negative" + input.text(), [=](Trial& trial) -> Tensors {
                       return {at::constant_pad_nd(input.leaf(trial), {-1, 1, 1, -1}, 0)};
                     }});
  }
  expect_same_on_meta(cases);
}

TEST(PaddingKernels, ResamplingIsAsOnTheCPU) {
  std::vector<Case> cases;
  for (const Input& input : kInputs) {
    const int64_t batched = input.rank + 2;
    if (static_cast<int64_t>(input.sizes.size()) != batched) continue;
    const std::vector<int64_t> size = input.all(12);
    cases.push_back({"nearest" + input.text(), [=](Trial& trial) -> Tensors {
                       const at::Tensor x = input.leaf(trial);
                       return {input.rank == 1   ? at::upsample_nearest1d(x, size)
                               : input.rank == 2 ? at::upsample_nearest2d(x, size)
                                                 : at::upsample_nearest3d(x, size)};
                     }});
    cases.push_back({"linear" + input.text(), [=](Trial& trial) -> Tensors {
                       const at::Tensor x = input.leaf(trial);
                       return {input.rank == 1   ? at::upsample_linear1d(x, size, false)
                               : input.rank == 2 ? at::upsample_bilinear2d(x, size, false)
                                                 : at::upsample_trilinear3d(x, size, false)};
                     }});
    if (input.rank == 1) continue;
    cases.push_back({"grid" + input.text(), [=](Trial& trial) -> Tensors {
                       std::vector<int64_t> grid = input.all(6);
                       grid.insert(grid.begin(), 2);
                       grid.push_back(input.rank);
                       return {at::grid_sampler(input.leaf(trial), trial.leaf(grid), 0, 0, false)};
                     }});
    if (input.rank == 3) continue;
    cases.push_back({"bicubic" + input.text(), [=](Trial& trial) -> Tensors {
                       return {at::upsample_bicubic2d(input.leaf(trial), size, false)};
                     }});
    cases.push_back({"im2col" + input.text(), [=](Trial& trial) -> Tensors {
                       return {at::im2col(input.leaf(trial), {3, 2}, {1, 2}, {1, 0}, {2, 1})};
                     }});
    cases.push_back({"channel shuffle" + input.text(), [=](Trial& trial) -> Tensors {
                       return {at::channel_shuffle(input.leaf(trial).detach(), 2)};
                     }});
    cases.push_back({"pixel shuffle" + input.text(), [=](Trial& trial) -> Tensors {
                       return {at::pixel_shuffle(input.leaf(trial), 2)};
                     }});
  }
  cases.push_back(
      {"col2im", [](Trial& trial) -> Tensors {
         return {at::col2im(trial.leaf({2, 12, 12}), {4, 5}, {2, 2}, {1, 1}, {0, 0}, {1, 1})};
       }});
  cases.push_back(
      {"col2im without batch", [](Trial& trial) -> Tensors {
         return {at::col2im(trial.leaf({12, 12}), {4, 5}, {2, 2}, {1, 1}, {0, 0}, {1, 1})};
       }});
  expect_same_on_meta(cases);
}

}  // namespace
}  // namespace gpipe
