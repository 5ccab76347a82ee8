#include "gpipe/internal/backward/run_node.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <exception>

#include "gpipe/internal/backward/walks_for_tests.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using torch::autograd::variable_list;

TEST(ValidateGradients, LeavesWhatFitsAndConvertsWhatDoesNot) {
  const at::Tensor x = torch::randn({2, 3}).requires_grad_();
  const at::Tensor y = x * 2;
  const at::Tensor fits = torch::randn({2, 3});
  variable_list gradients = {fits, torch::ones({2, 3}, torch::kDouble), torch::ones({4, 2, 3}),
                             at::Tensor()};
  validate_gradients(roots_of({y, y, y, y}), gradients, nullptr);
  EXPECT_TRUE(gradients[0].is_same(fits));
  EXPECT_EQ(gradients[1].scalar_type(), torch::kFloat);
  EXPECT_THAT(gradients[2], EqualsBitwise(torch::full({2, 3}, 4.0)));
  EXPECT_FALSE(gradients[3].defined());
}

// A leaf may want its gradient in another dtype, such as a parameter in bfloat16 with a master
// gradient.
TEST(ValidateGradients, GivesALeafTheDtypeThatItWantsForItsGradient) {
  const at::Tensor leaf = torch::ones({2, 3}).requires_grad_();
  leaf.set_grad_dtype(torch::kDouble);
  variable_list gradients = {torch::ones({2, 3})};
  validate_gradients(roots_of({leaf}), gradients, nullptr);
  EXPECT_EQ(gradients[0].scalar_type(), torch::kDouble);
}

TEST(ValidateGradients, RefusesOtherShapesAndCounts) {
  const at::Tensor y = torch::randn({2, 3}).requires_grad_() * 2;
  variable_list other_shape = {torch::ones({2})};
  EXPECT_THROW(validate_gradients(roots_of({y}), other_shape, nullptr), c10::Error);
  variable_list too_few;
  EXPECT_THROW(validate_gradients(roots_of({y}), too_few, nullptr), c10::Error);
}

TEST(RunNode, GivesTheSameHereAndInTheEngine) {
  for (const bool in_engine : {false, true}) {
    SCOPED_TRACE(in_engine);
    const at::Tensor x = torch::full({2, 3}, 0.5).requires_grad_();
    const at::Tensor row = torch::full({3}, 3.0).requires_grad_();
    const at::Tensor y = x * row;
    const variable_list inputs = {torch::full({2, 3}, 2.0)};
    for (const bool keep : {true, false}) {
      const variable_list results = run_node(*y.grad_fn(), inputs, in_engine, keep);
      ASSERT_EQ(results.size(), 2);
      EXPECT_THAT(results[0], EqualsBitwise(torch::full({2, 3}, 6.0)));
      EXPECT_THAT(results[1], EqualsBitwise(torch::full({3}, 2.0)))
          << "the gradient must have the shape of the row: it is summed over the broadcast "
             "dimension";
    }
    static int taken;
    taken = 0;
    set_thrown_taker([](const std::exception&) { ++taken; });
    EXPECT_THROW(run_node(*y.grad_fn(), inputs, in_engine, /*keep_graph=*/false), c10::Error);
    EXPECT_EQ(taken, 1);
    set_thrown_taker(nullptr);
  }
}

}  // namespace
}  // namespace gpipe::internal
