#include "experiments/rows/training_state.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "command/files.h"

namespace gpipe::experiments {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::map<std::string, std::string>& config() {
  static const std::map<std::string, std::string> config = {{"batch", "8"}, {"seed", "1"}};
  return config;
}

struct Training {
  explicit Training(int64_t width = 5)
      : model(torch::nn::Linear(4, width), torch::nn::BatchNorm1d(width),
              torch::nn::Linear(width, 2)),
        optimizer(model->parameters(),
                  torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-4)) {}

  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      const at::Tensor input = at::arange(32, at::kFloat).sin().add(step).reshape({8, 4});
      optimizer.zero_grad();
      model->forward(input).square().mean().backward();
      optimizer.step();
    }
  }

  torch::nn::Sequential model;
  torch::optim::SGD optimizer;
};

void expect_same(Training& a, Training& b) {
  const auto left = a.model->named_parameters();
  const auto right = b.model->named_parameters();
  for (const auto& item : left)
    EXPECT_TRUE(at::equal(item.value(), right[item.key()])) << item.key();
  for (const auto& item : a.model->named_buffers()) {
    EXPECT_TRUE(at::equal(item.value(), b.model->named_buffers()[item.key()])) << item.key();
  }
}

class TrainingStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name() + "/checkpoint";
    run_.train(0, 3);
  }

  std::string path_;
  Training run_;
};

TEST_F(TrainingStateTest, AResumedRunIsTheUninterruptedOne) {
  save_training_state(path_, *run_.model, run_.optimizer, {2, config(), "past"});
  Training resumed;
  resumed.train(0, 1);  // state that must not survive
  const TrainingState state =
      load_training_state(path_, *resumed.model, resumed.optimizer, config());
  EXPECT_EQ(state.epochs, 2);
  EXPECT_EQ(state.history, "past");
  expect_same(run_, resumed);
  run_.train(3, 6);
  resumed.train(3, 6);
  expect_same(run_, resumed);  // bitwise: momentum came back too
}

TEST_F(TrainingStateTest, BeforeTheFirstStepThereIsNoMomentum) {
  Training fresh;
  save_training_state(path_, *fresh.model, fresh.optimizer, {0, config(), ""});
  load_training_state(path_, *run_.model, run_.optimizer, config());
  fresh.train(0, 2);
  run_.train(0, 2);
  expect_same(fresh, run_);
}

TEST_F(TrainingStateTest, AnotherConfigIsRefusedAndNamed) {
  save_training_state(path_, *run_.model, run_.optimizer, {2, config(), ""});
  Training other;
  const at::Tensor before = other.model->parameters()[0].clone();
  EXPECT_THAT(
      [&] {
        load_training_state(path_, *other.model, other.optimizer,
                            {{"batch", "16"}, {"data", "fake"}});
      },
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("batch: saved with 8, now 16"),
                                           HasSubstr("data: saved with nothing, now fake"),
                                           HasSubstr("seed: saved with 1, now nothing"))));
  EXPECT_TRUE(at::equal(before, other.model->parameters()[0]));
}

TEST_F(TrainingStateTest, CanBeReadWithoutAModel) {
  save_training_state(path_, *run_.model, run_.optimizer, {2, config(), "past"});
  EXPECT_EQ(read_training_state(path_, config()).history, "past");
  EXPECT_THROW(read_training_state(path_, {{"batch", "16"}}), c10::ValueError);
}

TEST_F(TrainingStateTest, AnotherModelIsRefused) {
  save_training_state(path_, *run_.model, run_.optimizer, {2, config(), ""});
  Training wide(6);
  EXPECT_THAT([&] { load_training_state(path_, *wide.model, wide.optimizer, config()); },
              ThrowsMessage<c10::ValueError>(HasSubstr("has shape")));
}

TEST_F(TrainingStateTest, MissingAndDamagedFiles) {
  const auto loading = [this] {
    load_training_state(path_, *run_.model, run_.optimizer, config());
  };
  EXPECT_THAT(loading, ThrowsMessage<c10::ValueError>(HasSubstr("there is no checkpoint")));
  command::write_file_atomically(path_, "something else");
  EXPECT_THAT(loading, ThrowsMessage<c10::ValueError>(HasSubstr("damaged")));
  save_training_state(path_, *run_.model, run_.optimizer, {2, config(), ""});
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) / 2);
  EXPECT_THAT(loading, ThrowsMessage<c10::ValueError>(HasSubstr("damaged")));
  // Bytes of a tensor that were changed must be noticed, too.
  save_training_state(path_, *run_.model, run_.optimizer, {2, config(), ""});
  {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path_) / 2));
    file.put('\x7f').put('\x7f');
  }
  EXPECT_THAT(loading, ThrowsMessage<c10::ValueError>(HasSubstr("damaged")));
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(loading, ThrowsMessage<c10::ValueError>(
                           AllOf(HasSubstr(path_), HasSubstr("cannot be read: it is a folder"))));
}

}  // namespace
}  // namespace gpipe::experiments
