#include "experiments/rows/explain_run.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <sstream>
#include <vector>

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;

Task task() {
  return {[] { return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)); },
          [](const at::Tensor& output, const at::Tensor& target) {
            return at::mse_loss(output, target);
          }};
}

std::unique_ptr<Trainer> pipeline() {
  return make_pipeline_trainer(
      task(),
      GPipeOptions({1, 1}).devices(std::vector<c10::Device>(2, c10::Device(c10::kCPU))).chunks(2),
      Schedule::gpipe);
}

Json explain(Trainer& trainer, const RunContext& context) {
  return explain_run(trainer, at::rand({4, 4}), at::rand({4, 4}), task().loss, Schedule::gpipe,
                     /*param_scale=*/2, "pipeline-2", context);
}

TEST(ExplainRun, TellsPeopleAndPrograms) {
  const std::unique_ptr<Trainer> trainer = pipeline();
  const at::Tensor weights = trainer->module().parameters()[0].detach().clone();
  std::ostringstream out, progress;
  RunContext context;
  context.out = &out;
  context.progress = &progress;
  const Json json = explain(*trainer, context);
  EXPECT_THAT(out.str(), HasSubstr("pipeline-2, why it is slow\n"));
  EXPECT_THAT(out.str(), HasSubstr("A step of 4 rows in 2 micro-batches takes"));
  EXPECT_EQ(json.at("setup").at("schedule"), "gpipe");
  EXPECT_EQ(json.at("parts").size(), 7u);
  EXPECT_TRUE(trainer->module().parameters()[0].equal(weights));
}

TEST(ExplainRun, OthersThanPipelinesHaveNothingToExplain) {
  const std::unique_ptr<Trainer> trainer = make_naive_trainer(task(), c10::kCPU);
  std::ostringstream out;
  RunContext context;
  context.out = &out;
  EXPECT_TRUE(explain(*trainer, context).is_null());
  EXPECT_THAT(out.str(), HasSubstr("pipeline-2: no pipeline"));
}

TEST(ExplainRun, AnInterruptEndsIt) {
  const std::unique_ptr<Trainer> trainer = pipeline();
  std::ostringstream out;
  RunContext context;
  context.out = &out;
  context.interrupted = [] { return true; };
  EXPECT_TRUE(explain(*trainer, context).is_null());
  EXPECT_EQ(out.str(), "");
  // An interrupt must also end a run in the middle of its measurements, which take seconds.
  int64_t calls = 0;
  context.interrupted = [&calls] { return ++calls == 20; };
  EXPECT_TRUE(explain(*trainer, context).is_null());
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(calls, 20);
}

}  // namespace
}  // namespace gpipe::experiments
