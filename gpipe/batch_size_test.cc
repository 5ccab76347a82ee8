#include "gpipe/batch_size.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(BatchSize, IsThatOfAllTensorsThatAreCut) {
  EXPECT_EQ(batch_size({at::zeros({3, 2}), at::Tensor(), at::zeros({3})}, "input"), 3);
  EXPECT_EQ(batch_size({at::zeros({1, 2}), at::zeros({3})}, "input", {0}), 3);
  EXPECT_EQ(batch_size({at::zeros({0, 2})}, "input"), 0);
}

TEST(BatchSize, RefusesWhatHasNone) {
  const auto expect_refused = [](const std::vector<at::Tensor>& tensors,
                                 const std::vector<int64_t>& shared, const char* part) {
    EXPECT_THAT([&] { batch_size(tensors, "input", shared); },
                ThrowsMessage<c10::ValueError>(HasSubstr(part)));
  };
  expect_refused({at::zeros({3}), at::zeros({4})}, {}, "input 1 has 4 rows in dimension 0");
  expect_refused({at::zeros({})}, {}, "input 0 has no dimension to cut into micro-batches");
  expect_refused({}, {}, "there is no defined tensor among the 0 tensors of input");
  expect_refused({at::zeros({3})}, {0}, "there is no defined tensor among the 1 tensors of input");
  expect_refused({at::zeros({3})}, {1}, "shared_inputs names number 1");
}

}  // namespace
}  // namespace gpipe
