#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

using testing::Case;
using testing::expect_same_on_meta;
using testing::Trial;
using Tensors = std::vector<at::Tensor>;

// Inputs of two to five dimensions, in each memory format that exists for them.
const std::vector<std::pair<std::vector<int64_t>, c10::MemoryFormat>> kInputs = {
    {{3, 4}, c10::MemoryFormat::Contiguous},
    {{3, 4, 5}, c10::MemoryFormat::Contiguous},
    {{3, 4, 5, 6}, c10::MemoryFormat::Contiguous},
    {{3, 4, 5, 6}, c10::MemoryFormat::ChannelsLast},
    {{3, 4, 5, 6, 2}, c10::MemoryFormat::Contiguous},
    {{3, 4, 5, 6, 2}, c10::MemoryFormat::ChannelsLast3d},
};

TEST(NormKernels, AreAsOnTheCPU) {
  std::vector<Case> cases;
  for (const auto& input : kInputs) {
    const auto& [sizes, format] = input;
    const auto x = [input](Trial& trial) { return trial.leaf(input.first, input.second); };
    const std::string input_text = c10::str(" of ", c10::IntArrayRef(sizes), format);
    for (const bool affine : {false, true}) {
      const auto scale = [affine](Trial& trial, at::IntArrayRef sizes) {
        return affine ? trial.leaf(sizes) : at::Tensor();
      };
      for (const bool training : {false, true}) {
        cases.push_back(
            {c10::str("batch norm", input_text, affine, training), [=](Trial& trial) -> Tensors {
               return {at::batch_norm(x(trial), scale(trial, {4}), scale(trial, {4}),
                                      trial.data({4}), trial.data({4}), training, 0.1, 1e-5, true)};
             }});
      }
      cases.push_back({c10::str("batch norm without statistics", input_text, affine),
                       [=](Trial& trial) -> Tensors {
                         return {at::batch_norm(x(trial), scale(trial, {4}), scale(trial, {4}), {},
                                                {}, true, 0.1, 1e-5, true)};
                       }});
      // Group norm is compared for contiguous inputs only. With channels last the CPU keeps the
      // format, but for any other device LibTorch makes the input contiguous.
      if (format == c10::MemoryFormat::Contiguous)
        cases.push_back({c10::str("group norm", input_text, affine), [=](Trial& trial) -> Tensors {
                           return {
                               at::group_norm(x(trial), 2, scale(trial, {4}), scale(trial, {4}))};
                         }});
      for (size_t from = 1; from < sizes.size(); ++from) {
        const std::vector<int64_t> last(sizes.begin() + static_cast<int64_t>(from), sizes.end());
        cases.push_back(
            {c10::str("layer norm", input_text, affine, from), [=](Trial& trial) -> Tensors {
               return {at::layer_norm(x(trial), last, scale(trial, last), scale(trial, last))};
             }});
      }
      if (sizes.size() == 2) continue;
      for (const bool use_input : {false, true}) {
        cases.push_back({c10::str("instance norm", input_text, affine, use_input),
                         [=](Trial& trial) -> Tensors {
                           return {at::instance_norm(x(trial), scale(trial, {4}), scale(trial, {4}),
                                                     use_input ? at::Tensor() : trial.data({4}),
                                                     use_input ? at::Tensor() : trial.data({4}),
                                                     use_input, 0.1, 1e-5, true)};
                         }});
      }
    }
  }
  expect_same_on_meta(cases);
}

// Statistics are kept in the type of the parameters: float, or that of a half-precision input.
TEST(NormKernels, OfHalfPrecisionAreAsOnTheCPU) {
  const std::pair<at::ScalarType, at::ScalarType> kTypes[] = {{at::kBFloat16, at::kFloat},
                                                              {at::kBFloat16, at::kBFloat16},
                                                              {at::kHalf, at::kFloat},
                                                              {at::kHalf, at::kHalf},
                                                              {at::kDouble, at::kDouble}};
  for (const auto& types : kTypes) {
    const at::ScalarType type = types.first, parameter = types.second;
    expect_same_on_meta({
        {"native batch norm",
         [=](Trial& trial) -> Tensors {
           const auto [y, mean, invstd] =
               at::native_batch_norm(trial.leaf({3, 4, 5, 6}, type), trial.leaf({4}, parameter),
                                     trial.leaf({4}, parameter), trial.data({4}, parameter),
                                     trial.data({4}, parameter), true, 0.1, 1e-5);
           return {y, mean.detach(), invstd.detach()};
         }},
        {"native batch norm without weights",
         [=](Trial& trial) -> Tensors {
           const auto [y, mean, invstd] = at::native_batch_norm(
               trial.leaf({3, 4, 5, 6}, type), {}, {}, trial.data({4}, parameter),
               trial.data({4}, parameter), true, 0.1, 1e-5);
           return {y, mean.detach(), invstd.detach()};
         }},
        {"native batch norm without running statistics",
         [=](Trial& trial) -> Tensors {
           const auto [y, mean, invstd] =
               at::native_batch_norm(trial.leaf({3, 4, 5, 6}, type), trial.leaf({4}, parameter),
                                     trial.leaf({4}, parameter), {}, {}, true, 0.1, 1e-5);
           return {y, mean.detach(), invstd.detach()};
         }},
        {"native layer norm",
         [=](Trial& trial) -> Tensors {
           const auto [y, mean, rstd] = at::native_layer_norm(trial.leaf({3, 4, 5}, type), {4, 5},
                                                              trial.leaf({4, 5}, parameter),
                                                              trial.leaf({4, 5}, parameter), 1e-5);
           return {y, mean.detach(), rstd.detach()};
         }},
        {"native group norm",
         [=](Trial& trial) -> Tensors {
           const auto [y, mean, rstd] =
               at::native_group_norm(trial.leaf({3, 4, 5}, type), trial.leaf({4}, parameter),
                                     trial.leaf({4}, parameter), 3, 4, 5, 2, 1e-5);
           return {y, mean.detach(), rstd.detach()};
         }},
    });
  }
}

TEST(NormKernels, OfNonContiguousInputsAreAsOnTheCPU) {
  expect_same_on_meta({
      {"batch norm",
       [](Trial& trial) -> Tensors {
         return {at::batch_norm(trial.leaf({3, 5, 4}).transpose(1, 2), trial.leaf({4}),
                                trial.leaf({4}), {}, {}, true, 0.1, 1e-5, true)};
       }},
      {"layer norm",
       [](Trial& trial) -> Tensors {
         return {at::layer_norm(trial.leaf({4, 3, 5}).transpose(0, 1), {5}, trial.leaf({5}),
                                trial.leaf({5}))};
       }},
      {"rms norm",
       [](Trial& trial) -> Tensors {
         return {at::rms_norm(trial.leaf({4, 3, 5}), {5}, trial.leaf({5}))};
       }},
      {"renorm",
       [](Trial& trial) -> Tensors {
         return {at::renorm(trial.leaf({4, 5}), 2, 0, 1)};
       }},
  });
}

}  // namespace
}  // namespace gpipe
