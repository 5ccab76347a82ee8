#include "gpipe/internal/replicas/packing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

TEST(Packing, WhatIsUnpackedIsWhatWasPacked) {
  const std::vector<at::Tensor> parameters = {
      at::rand({3, 5}),
      at::rand({7}, torch::kDouble),
      at::zeros({0, 2}),
      at::rand({}),
      at::rand({2, 2}).to(torch::kBFloat16),
      at::rand({4, 3}).t(),
      at::zeros({1}, torch::kComplexFloat),
  };
  const Bucket bucket = {5, 0, 1, 2, 3, 4, 6};
  const Packing packing(parameters, bucket);
  std::vector<at::Tensor> tensors = parameters;
  tensors[1] = at::Tensor();
  const at::Tensor message = packing.pack(tensors, c10::kCPU);
  EXPECT_EQ(message.numel(), packing.bytes());
  std::vector<bool> is_defined(parameters.size(), true);
  is_defined[1] = false;
  const std::vector<at::Tensor> unpacked = packing.unpack(message, is_defined);
  ASSERT_EQ(unpacked.size(), bucket.size());
  for (size_t place = 0; place < bucket.size(); ++place) {
    const at::Tensor& expected = tensors[bucket[place]];
    ASSERT_EQ(unpacked[place].defined(), expected.defined()) << place;
    if (!expected.defined()) continue;
    EXPECT_EQ(testing::bitwise_difference(expected.contiguous(), unpacked[place]), "") << place;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(unpacked[place].const_data_ptr()) % 64, 0u);
  }
}

}  // namespace
}  // namespace gpipe::internal
