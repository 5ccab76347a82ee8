#include "gpipe/internal/backward/walk_number.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/types.h>

#include <optional>
#include <thread>
#include <vector>

#include "gpipe/internal/backward/walks_for_tests.h"

namespace gpipe::internal {
namespace {

using torch::autograd::variable_list;

std::optional<int64_t> number_now() {
  return walk_number(torch::autograd::get_current_graph_task_id());
}

TEST(WalkNumber, IsThatOfTheInnermostWalkOfTheThread) {
  EXPECT_EQ(walk_number(kNoGraphTask), std::nullopt);
  const WalkScope outer;
  const std::optional<int64_t> number = walk_number(kNoGraphTask);
  ASSERT_NE(number, std::nullopt);
  {
    const WalkScope inner;
    EXPECT_NE(walk_number(kNoGraphTask), number);
  }
  EXPECT_EQ(walk_number(kNoGraphTask), number);
  std::thread([] { EXPECT_EQ(walk_number(kNoGraphTask), std::nullopt); }).join();
}

TEST(WalkNumber, IsNotThatOfAGraphTaskWhichTheWalkHasNotBegun) {
  add_to_walk(7);  // does nothing outside of a walk
  const WalkScope scope;
  EXPECT_EQ(walk_number(7), std::nullopt);
  add_to_walk(7);
  EXPECT_EQ(walk_number(7), walk_number(kNoGraphTask));
  EXPECT_EQ(walk_number(8), std::nullopt);
}

// As a custom function on an accelerator, which runs on a thread of the engine.
TEST(WalkNumber, ReachesAnotherThreadByTheGraphTaskForAsLongAsTheWalkLasts) {
  const auto elsewhere = [](int graph_task) {
    std::optional<int64_t> number;
    std::thread([&] { number = walk_number(graph_task); }).join();
    return number;
  };
  {
    const WalkScope scope;
    add_to_walk(7);
    const std::optional<int64_t> number = elsewhere(7);
    EXPECT_NE(number, std::nullopt);
    EXPECT_EQ(number, walk_number(7));
    EXPECT_EQ(elsewhere(8), std::nullopt);
    EXPECT_EQ(elsewhere(kNoGraphTask), std::nullopt);
    add_to_walk(8);
    EXPECT_EQ(elsewhere(7), std::nullopt);
    EXPECT_EQ(elsewhere(8), number);
  }
  EXPECT_EQ(elsewhere(8), std::nullopt);
}

std::vector<std::optional<int64_t>> asked;

// Its backward asks for the number. A custom function runs in the engine. A second time it asks in
// a backward of its own.
struct Asks : torch::autograd::Function<Asks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return 2 * x;
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    asked.push_back(number_now());
    if (asked.size() == 2) {
      const c10::AutoGradMode grad(true);
      Asks::apply(torch::ones({1}).requires_grad_()).backward();
    }
    return {2 * gradients[0]};
  }
};

TEST(WalkNumber, IsOneForAllNodesOfAWalkButNotForABackwardThatOneOfThemRuns) {
  const at::Tensor x = torch::ones({1}).requires_grad_();
  const at::Tensor y = Asks::apply(Asks::apply(Asks::apply(x)));
  asked.clear();
  variable_list gradients = ones_for({y});
  run_plainly(roots_of({y}), gradients);
  ASSERT_EQ(asked.size(), 4);
  EXPECT_NE(asked[0], std::nullopt);
  EXPECT_EQ(asked[1], asked[0]);
  EXPECT_EQ(asked[2], std::nullopt);
  EXPECT_EQ(asked[3], asked[0]);
  EXPECT_EQ(number_now(), std::nullopt);
}

TEST(WalkNumber, IsAnotherForEachWalk) {
  const at::Tensor x = torch::ones({1}).requires_grad_();
  asked.assign(3, std::nullopt);  // so that no backward of its own is run
  for (int round = 0; round < 2; ++round) {
    const at::Tensor y = Asks::apply(x);
    variable_list gradients = ones_for({y});
    run_plainly(roots_of({y}), gradients);
  }
  ASSERT_EQ(asked.size(), 5);
  EXPECT_NE(asked[3], asked[4]);
  asked.clear();
}

}  // namespace
}  // namespace gpipe::internal
