#include "gpipe/internal/backward/gradient_sums.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;

struct GradientSums : ::testing::Test {
  const c10::NoGradGuard no_grad;
  const at::Tensor y = [] {
    const c10::AutoGradMode grad(true);
    return torch::ones({4}).requires_grad_() * 2;
  }();
  torch::autograd::Node* const node = y.grad_fn().get();
};

TEST_F(GradientSums, AreAddedUpInTheOrderOfTheirTerms) {
  std::vector<at::Tensor> terms;
  at::Tensor want = torch::zeros({4});
  for (int k = 0; k < 5; ++k) terms.push_back(torch::randn({4}) * 1e3F / (1 + k * k * k));
  want = terms[0] + terms[1] + terms[2] + terms[3] + terms[4];
  at::Tensor sum;
  torch::autograd::InputBuffer inputs(2);
  for (const at::Tensor& term : terms) {
    add_to_sum(sum, term.clone(), node);
    add_to_inputs(inputs, 1, term.clone(), node);
  }
  EXPECT_THAT(sum, EqualsBitwise(want));
  EXPECT_THAT(inputs.buffer[1], EqualsBitwise(want));
  EXPECT_FALSE(inputs.buffer[0].defined());
}

TEST_F(GradientSums, DoNotWriteIntoWhatOthersHave) {
  const at::Tensor first = torch::ones({4});
  at::Tensor sum;
  add_to_sum(sum, first, node);
  add_to_sum(sum, torch::ones({4}), node);
  EXPECT_THAT(first, EqualsBitwise(torch::ones({4})));
  EXPECT_THAT(sum, EqualsBitwise(torch::full({4}, 2.0)));
}

TEST_F(GradientSums, TakeNothingForNothing) {
  at::Tensor sum;
  add_to_sum(sum, at::Tensor(), node);
  EXPECT_FALSE(sum.defined());
  add_to_sum(sum, torch::ones({4}), node);
  add_to_sum(sum, at::Tensor(), node);
  EXPECT_THAT(sum, EqualsBitwise(torch::ones({4})));
}

// A device with values takes no new memory for this sum. A memory plan counts the tensors that are
// made on meta, so no tensor must be made there, either.
TEST_F(GradientSums, OnMetaTakeNoMemoryWhereNobodyElseHasTheFirst) {
  torch::autograd::InputBuffer inputs(1);
  add_to_inputs(inputs, 0, torch::empty({4}, torch::kMeta), node);
  const c10::StorageImpl* const memory = inputs.buffer[0].storage().unsafeGetStorageImpl();
  add_to_inputs(inputs, 0, torch::empty({4}, torch::kMeta), node);
  EXPECT_EQ(inputs.buffer[0].storage().unsafeGetStorageImpl(), memory);
  const at::Tensor held = inputs.buffer[0];
  add_to_inputs(inputs, 0, torch::empty({4}, torch::kMeta), node);
  EXPECT_NE(inputs.buffer[0].storage().unsafeGetStorageImpl(), memory);
}

}  // namespace
}  // namespace gpipe::internal
