#include "gpipe/internal/call/own_memory.h"

#include <ATen/Functions.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

TEST(OwnMemory, WhatTheCallerOrTheModelHasIsCopied) {
  const torch::nn::BatchNorm1d norm(3);
  const auto partitions = partitions_of(torch::nn::Sequential(norm), {1});
  const ModelState model({&partitions.front()});
  const at::Tensor input = at::ones({2, 3});
  const at::Tensor result = at::ones({4});
  const std::vector<at::Tensor> given = {input.view({3, 2}), norm->weight.detach(),
                                         norm->running_mean.view({3, 1}), at::Tensor(), result};
  std::vector<at::Tensor> outputs = given;
  own_memory({at::Tensor(), input}, model, outputs);
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_NE(storage_of(outputs[k]), storage_of(given[k])) << k;
    EXPECT_THAT(outputs[k], testing::EqualsBitwise(given[k])) << k;
  }
  EXPECT_FALSE(outputs[3].defined());
  EXPECT_TRUE(outputs[4].is_same(result))
      << "an output whose memory no other tensor has is not copied";
}

}  // namespace
}  // namespace gpipe::internal
