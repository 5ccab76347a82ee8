#include "balance/choose/plan_options.h"

#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/search/search.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

nn::Sequential make() {
  at::manual_seed(3);
  return nn::Sequential(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(),
                        nn::Linear(8, 2));
}

// The result of a search for stages with different costs.
Schedule found() {
  SearchOptions options;
  options.placement = Placement::v_shape(2);
  options.micro_batches = 4;
  options.costs = {{1.0, 1.6, 1.1, 0.7}, {1.3, 2.5, 1.0, 1.6}, {0.7, 1.6, 1.0, 0.5}, {1, 2, 1, 1}};
  options.memory_limit = {5.0};
  options.budget = 2'000'000;
  const SearchResult result = search(options);
  EXPECT_EQ(result.origin, "search");
  return result.schedule;
}

PipelinePlan v_plan() {
  PipelinePlan plan;
  plan.rows = 8;
  plan.balance = {1, 1, 2, 1};
  plan.chunks = 4;
  plan.checkpoints = {Checkpoint::kNever, Checkpoint::kAlways, Checkpoint::kNever,
                      Checkpoint::kExceptLast};
  plan.schedule_name = "search";
  plan.schedule = found();
  plan.devices = {{}, {}};
  return plan;
}

LossFn mean() {
  return [](const Tensors& outputs, const Tensors&) { return outputs.at(0).square().mean(); };
}

TEST(PlanOptions, APlanRunsAndGivesTheBitsOf1F1B) {
  const PipelinePlan plan = plan_from_json(plan_to_json(v_plan()), "f");
  const at::Tensor input = at::rand({8, 4});
  const nn::Sequential planned = make();
  GPipe pipe(planned, pipe_options(plan));
  const double loss = pipe->step({input}, {}, mean(), step_options(plan)).loss;

  const nn::Sequential plain = make();
  GPipe reference(plain, GPipeOptions({3, 2}).chunks(4));
  EXPECT_EQ(reference->step({input}, {}, mean()).loss, loss);
  for (size_t k = 0; k < plain->parameters().size(); ++k) {
    EXPECT_THAT(planned->parameters()[k].grad(), EqualsBitwise(plain->parameters()[k].grad()));
  }
}

TEST(PlanOptions, ASmallerMiniBatchHasAScheduleToo) {
  PipelinePlan plan = v_plan();
  const nn::Sequential model = make();
  GPipe pipe(model, pipe_options(plan));
  for (const char* name : {"search", "zb-v", "interleaved"}) {
    plan.schedule_name = name;  // the interleaved schedule has another placement
    for (const int64_t rows : {3, 8}) {
      EXPECT_GT(pipe->step({at::rand({rows, 4})}, {}, mean(), step_options(plan)).loss, 0) << name;
    }
  }
}

TEST(PlanOptions, ASmallerMiniBatchKeepsItsOffloads) {
  SimulateOptions costs;
  costs.offload.bytes = [](const Action&) { return 1.0; };
  PipelinePlan plan = v_plan();
  plan.schedule = with_offloads(found(), Routes::create(4), costs);
  ASSERT_NE(plan.schedule, without_offloads(plan.schedule));
  const std::vector<double> most = simulate(plan.schedule, costs).peak;
  for (const int64_t micro_batches : {1, 2, 3}) {
    const Schedule smaller = step_options(plan).schedule_for(4, micro_batches);
    EXPECT_EQ(smaller.placement(), plan.placement());
    const std::vector<double> peak = simulate(smaller, costs).peak;  // verifies it, too
    for (size_t w = 0; w < peak.size(); ++w) EXPECT_LE(peak[w], most[w]) << smaller;
  }
  EXPECT_NE(step_options(plan).schedule_for(4, 3),
            without_offloads(step_options(plan).schedule_for(4, 3)));
}

TEST(PlanOptions, EachDeviceHasItsStages) {
  const std::vector<c10::Device> devices = {c10::Device(c10::kCUDA, 0), c10::Device(c10::kCUDA, 1)};
  EXPECT_THAT(pipe_options(v_plan(), devices).devices(),
              ElementsAre(devices[0], devices[1], devices[1], devices[0]));
  EXPECT_THAT(pipe_options(v_plan()).devices(), ElementsAre());
  EXPECT_EQ(pipe_options(v_plan()).chunks(), 4);
  EXPECT_EQ(pipe_options(v_plan()).placement(), Placement::v_shape(2));
  EXPECT_THAT(pipe_options(v_plan()).partition_checkpoints(),
              ElementsAre(Checkpoint::kNever, Checkpoint::kAlways, Checkpoint::kNever,
                          Checkpoint::kExceptLast));
}

TEST(PlanOptions, MistakesAreNamed) {
  EXPECT_THAT(
      [] { pipe_options(v_plan(), {c10::kCPU}); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("1 devices were given, the plan has 2")));
  PipelinePlan wrong = v_plan();
  wrong.balance = {5};
  EXPECT_THROW(step_options(wrong), std::invalid_argument);
  const StepOptions options = step_options(v_plan());
  EXPECT_THAT([&] { (void)options.schedule_for(2, 4); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("the plan is for 4 stages, but the pipeline has 2")));
}

}  // namespace
}  // namespace gpipe::balance
