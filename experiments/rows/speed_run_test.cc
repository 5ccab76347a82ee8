#include "experiments/rows/speed_run.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gpipe::experiments {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A trainer that records what it is given.
class Recorder : public Trainer {
 public:
  double step(const at::Tensor& input, const at::Tensor& target) override {
    EXPECT_EQ(input.size(0), target.size(0));
    sizes.push_back(input.size(0));
    observed.push_back(observer_ ? 1 : 0);
    if (observer_) {
      const Event::Time now = std::chrono::steady_clock::now();
      const int64_t run = static_cast<int64_t>(observed.size());
      observer_({Event::Edge::kBegin, {}, 0, now, false, {}, {}, run});
      observer_({Event::Edge::kEnd, {}, 0, now + std::chrono::milliseconds(3), false, {}, {}, run});
    }
    if (static_cast<int>(sizes.size()) == slow_at) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (static_cast<int>(sizes.size()) == fail_at) throw std::runtime_error("out of memory");
    return 0;
  }
  at::Tensor predict(const at::Tensor& input) override { return input; }
  void observe(const Observer& observer) override { observer_ = observer; }
  torch::nn::Module& module() override { return *model_; }
  c10::Device input_device() const override { return c10::kCPU; }
  c10::Device target_device() const override { return c10::kCPU; }

  std::vector<int64_t> sizes;
  std::vector<int> observed;  // for each step, whether it was observed
  int fail_at = -1;
  int slow_at = -1;

 private:
  Observer observer_;
  torch::nn::Linear model_{2, 2};
};

class SpeedRunTest : public ::testing::Test {
 protected:
  void run(int64_t samples, int64_t epochs) {
    torch::optim::SGD optimizer(trainer_.module().parameters(), torch::optim::SGDOptions(0.1));
    SpeedOptions options;
    options.title = "pipeline-2";
    options.samples = samples;
    options.epochs = epochs;
    options.trace = trace_;
    options.utilization = utilization_;
    outcome_.note = "tiny";
    run_speed(trainer_, optimizer, at::ones({4, 2}), at::ones({4}), options, context_, outcome_);
  }

  Recorder trainer_;
  RunContext context_;
  Outcome outcome_;
  std::string trace_;
  bool utilization_ = false;
};

TEST_F(SpeedRunTest, UtilizationIsOfTheWholeStepsThatCount) {
  utilization_ = true;
  run(/*samples=*/10, /*epochs=*/3);
  EXPECT_THAT(trainer_.observed, ElementsAre(0, 0, 0, 1, 1, 0, 1, 1, 0));
  EXPECT_EQ(outcome_.figures.at("utilization"), 100);  // a step is a single action
}

TEST_F(SpeedRunTest, TheLastWholeStepIsTraced) {
  std::ostringstream out;
  context_.out = &out;
  trace_ = ::testing::TempDir() + "/speed_run_test.json";
  run(/*samples=*/10, /*epochs=*/2);
  EXPECT_THAT(trainer_.sizes, ElementsAre(4, 4, 2, 4, 4, 2));
  EXPECT_THAT(trainer_.observed, ElementsAre(0, 0, 0, 0, 1, 0));
  EXPECT_THAT(out.str(), HasSubstr("pipeline-2, the last whole step; a step: 3 ms on 1 worker"));
  std::ifstream file(trace_);
  EXPECT_TRUE(file.good());
  std::remove(trace_.c_str());
  trainer_.observed.clear();
  run(/*samples=*/8, /*epochs=*/1);
  EXPECT_THAT(trainer_.observed, ElementsAre(0, 1));
  std::remove(trace_.c_str());
}

TEST_F(SpeedRunTest, AnEpochEndsWithAShorterBatch) {
  std::ostringstream out;
  context_.out = &out;
  trainer_.module().eval();
  run(10, 2);
  EXPECT_THAT(trainer_.sizes, ElementsAre(4, 4, 2, 4, 4, 2));
  EXPECT_TRUE(trainer_.module().is_training());
  EXPECT_EQ(outcome_.origin, Origin::kMeasured);
  EXPECT_EQ(outcome_.epochs.size(), 2u);
  // The average leaves out the first epoch.
  EXPECT_EQ(outcome_.figures.at("throughput"), outcome_.epochs[1]["throughput"].get<double>());
  EXPECT_DOUBLE_EQ(outcome_.epochs[0]["throughput"].get<double>(),
                   10 / outcome_.epochs[0]["seconds"].get<double>());
  EXPECT_THAT(out.str(), HasSubstr("pipeline-2, 2-2 epochs | "));
  EXPECT_EQ(outcome_.note, "tiny");
}

// Each round has a model and an optimizer of its own. Both rounds fill one outcome.
TEST_F(SpeedRunTest, RoundsGoOnWhereTheLastOneEnded) {
  std::ostringstream out;
  context_.out = &out;
  context_.rounds = 2;
  trace_ = ::testing::TempDir() + "/speed_run_rounds_test.json";
  run(/*samples=*/10, /*epochs=*/2);
  EXPECT_FALSE(std::ifstream(trace_).good());  // the trace is of the last round
  EXPECT_THAT(out.str(), Not(HasSubstr("average")));
  context_.round = 2;
  run(/*samples=*/10, /*epochs=*/2);
  EXPECT_TRUE(std::ifstream(trace_).good());
  std::remove(trace_.c_str());
  ASSERT_EQ(outcome_.epochs.size(), 4u);
  const auto throughput = [this](int k) { return outcome_.epochs[k]["throughput"].get<double>(); };
  EXPECT_DOUBLE_EQ(outcome_.figures.at("throughput"), (throughput(1) + throughput(3)) / 2);
  EXPECT_EQ(outcome_.epochs[1]["round"], 1);
  EXPECT_EQ(outcome_.epochs[2]["round"], 2);
  EXPECT_THAT(out.str(), HasSubstr("1/2 epoch of round 2/2 | "));
  EXPECT_THAT(out.str(), HasSubstr("pipeline-2, 2-2 epochs of 2 rounds | "));
}

TEST_F(SpeedRunTest, EpochsThatDifferAreTold) {
  trainer_.slow_at = 8;  // in the third epoch
  run(10, 3);
  EXPECT_THAT(outcome_.note, StartsWith("tiny; its epochs differed by a factor of "));
}

TEST_F(SpeedRunTest, AnEpochSmallerThanABatch) {
  run(3, 1);
  EXPECT_THAT(trainer_.sizes, ElementsAre(3));
  EXPECT_EQ(outcome_.origin, Origin::kMeasured);
}

TEST_F(SpeedRunTest, StoppedAfterAStepKeepsTheEpochsBefore) {
  context_.interrupted = [this] { return trainer_.sizes.size() == 5; };
  run(10, 3);
  EXPECT_EQ(trainer_.sizes.size(), 5u);
  EXPECT_EQ(outcome_.origin, Origin::kInterrupted);
  EXPECT_EQ(outcome_.note, "stopped after epoch 1 of 3; tiny");
  EXPECT_EQ(outcome_.epochs.size(), 1u);
  EXPECT_EQ(outcome_.figures.count("throughput"), 1u);
}

TEST_F(SpeedRunTest, AnErrorKeepsTheEpochsBefore) {
  trainer_.fail_at = 5;
  EXPECT_THROW(run(10, 3), std::runtime_error);
  EXPECT_EQ(outcome_.figures.count("throughput"), 1u);
  EXPECT_EQ(outcome_.epochs.size(), 1u);
}

TEST_F(SpeedRunTest, NoSamples) { EXPECT_THROW(run(0, 1), std::invalid_argument); }

}  // namespace
}  // namespace gpipe::experiments
