#include "experiments/rows/training_run.h"

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "experiments/data/fake.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& labels) {
  return at::cross_entropy_loss(scores, labels);
}

class TrainingRunTest : public ::testing::Test {
 protected:
  TrainingRunTest() {
    const std::string folder = ::testing::TempDir() + "/" +
                               ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder);
    options_.title = "test";
    options_.lr = [](int64_t, int64_t) { return 0.1; };
    options_.loss = loss_of;
    options_.state = folder + "/state";
    options_.config = {{"seed", "1"}};
  }

  // A run from the beginning, or from a saved state, of a network with fixed initial weights.
  TrainingResult run(int64_t epochs) {
    options_.epochs = epochs;
    Task task;
    task.make_model = [] {
      at::manual_seed(1);
      return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(3 * 4 * 4, 2));
    };
    task.loss = loss_of;
    const auto trainer = make_naive_trainer(task, c10::kCPU);
    const auto data = std::make_shared<FakeDataset>(20, ImageShape{3, 4, 4}, 2, 7);
    LoaderOptions loading;
    loading.batch_size = 8;
    loading.shuffle = true;
    loading.drop_last = true;
    Loader train(data, loading);
    loading.shuffle = false;
    loading.drop_last = false;
    Loader validation(data, loading);
    return run_training(*trainer, train, validation, options_, context_);
  }

  TrainingOptions options_;
  RunContext context_;
};

TEST_F(TrainingRunTest, AStoppedRunGoesOnWhereItWas) {
  std::vector<std::size_t> seen;
  options_.on_epoch = [&seen](const auto& epochs) { seen.push_back(epochs.size()); };
  const TrainingResult whole = run(3);
  ASSERT_EQ(whole.epochs.size(), 3u);
  EXPECT_FALSE(whole.interrupted);

  int steps = 0;
  context_.interrupted = [&steps] { return ++steps > 7; };  // in the second epoch
  const TrainingResult stopped = run(3);
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.epochs.size(), 1u);

  context_.interrupted = nullptr;
  options_.resume = true;
  const TrainingResult resumed = run(3);
  ASSERT_EQ(resumed.epochs.size(), 3u);
  EXPECT_EQ(resumed.epochs[2].train_loss, whole.epochs[2].train_loss);
  EXPECT_EQ(resumed.epochs[2].accuracy, whole.epochs[2].accuracy);
  EXPECT_EQ(seen, (std::vector<std::size_t>{1, 2, 3, 1, 1, 2, 3}));
}

TEST_F(TrainingRunTest, MoreEpochsWhereTheLearningRatesWereTheSame) {
  const TrainingResult whole = run(4);
  run(2);
  options_.resume = true;
  EXPECT_NO_THROW(check_resumable(options_, 2));
  const TrainingResult extended = run(4);
  ASSERT_EQ(extended.epochs.size(), 4u);
  EXPECT_EQ(extended.epochs[3].train_loss, whole.epochs[3].train_loss);
  EXPECT_THAT([&] { run(3); }, ThrowsMessage<c10::ValueError>(HasSubstr("has 4 epochs already")));
}

TEST_F(TrainingRunTest, NoOtherLengthWhereTheLearningRatesWereOthers) {
  // Only the learning rates of the first epoch do not depend on the number of epochs. So a run of
  // another length may be resumed after one epoch, but not after two.
  options_.lr = [](int64_t step, int64_t epochs) { return step < 2 ? 0.1 : 0.1 / epochs; };
  run(2);
  options_.resume = true;
  EXPECT_THAT([&] { run(4); }, ThrowsMessage<c10::ValueError>(HasSubstr("differ from epoch 2 on")));
  options_.epochs = 4;
  EXPECT_THROW(check_resumable(options_, 2), c10::ValueError);
  options_.resume = false;
  EXPECT_NO_THROW(check_resumable(options_, 2));
  run(1);
  options_.resume = true;
  EXPECT_EQ(run(4).epochs.size(), 4u) << "only the first epoch was run";
}

TEST_F(TrainingRunTest, AnotherConfigIsRefusedAndNamed) {
  options_.config = {{"batch", "8"}, {"seed", "1"}, {"data", "a folder\xff"}};
  run(1);
  options_.resume = true;
  EXPECT_NO_THROW(run(2));
  options_.config = {{"batch", "16"}, {"network", "small"}, {"data", "a folder\xff"}};
  const auto has_differences = ThrowsMessage<c10::ValueError>(AllOf(
      HasSubstr("batch: saved with 8, now 16"), HasSubstr("network: saved with nothing, now small"),
      HasSubstr("seed: saved with 1, now nothing"), Not(HasSubstr("data: "))));
  EXPECT_THAT([&] { run(3); }, has_differences);
  EXPECT_THAT([&] { check_resumable(options_, 2); }, has_differences);
}

TEST_F(TrainingRunTest, ACheckpointOfAnotherProgramIsRefused) {
  torch::nn::Sequential network(torch::nn::Linear(1, 1));
  GPipe pipe(network, {1});
  torch::optim::SGD optimizer(pipe->parameters(), 0.1);
  save_checkpoint(pipe, optimizer, {}, options_.state);
  options_.resume = true;
  EXPECT_THAT([&] { check_resumable(options_, 2); },
              ThrowsMessage<c10::ValueError>(HasSubstr("not a checkpoint of this program")));
}

TEST_F(TrainingRunTest, AStateThatCannotBeWrittenLosesNoResult) {
  std::ofstream(options_.state) << "a file where the folder belongs";
  std::size_t reached = 0;
  options_.on_epoch = [&reached](const auto& epochs) { reached = epochs.size(); };
  EXPECT_THROW(run(2), c10::ValueError);
  EXPECT_EQ(reached, 1u);
}

}  // namespace
}  // namespace gpipe::experiments
