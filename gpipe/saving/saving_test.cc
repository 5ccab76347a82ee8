#include "gpipe/saving/saving.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "safetensors/safetensors.h"

namespace gpipe {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string new_path() {
  static int count = 0;
  return ::testing::TempDir() + "/run" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

torch::nn::Sequential model(int64_t width = 5) {
  return torch::nn::Sequential(torch::nn::Linear(4, width), torch::nn::BatchNorm1d(width),
                               torch::nn::Dropout(0.5), torch::nn::Linear(width, 3));
}

GPipe pipeline(std::vector<int64_t> balance, int64_t width = 5) {
  const auto stages = static_cast<size_t>(balance.size());
  return {model(width), GPipeOptions(std::move(balance))
                            .devices(std::vector<at::Device>(stages, at::kCPU))
                            .cpu_threads_per_stage(1)
                            .chunks(2)};
}

void train(GPipe& pipe, torch::optim::Optimizer& optimizer, int64_t first, int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    optimizer.zero_grad();
    const at::Tensor input = at::linspace(-1, 1 + 0.1 * static_cast<double>(step), 24).view({6, 4});
    const at::Tensor target = at::linspace(0, 1, 18).view({6, 3});
    pipe->step({input}, {target}, [](const Tensors& outputs, const Tensors& targets) {
      return torch::nn::functional::mse_loss(outputs[0], targets[0]);
    });
    optimizer.step();
  }
}

torch::optim::Adam adam(GPipe& pipe) {
  return torch::optim::Adam(pipe->parameters(), torch::optim::AdamOptions(0.05));
}

void expect_same_state(GPipe& one, GPipe& other) {
  for (const auto& parameter : one->named_parameters()) {
    EXPECT_THAT(other->named_parameters()[parameter.key()], EqualsBitwise(parameter.value()))
        << parameter.key();
  }
  for (const auto& buffer : one->named_buffers()) {
    EXPECT_THAT(other->named_buffers()[buffer.key()], EqualsBitwise(buffer.value()))
        << buffer.key();
  }
}

// With dropout, which draws, and batch norm, which has buffers.
TEST(Checkpoint, LetsARunGoOnUnderAnotherBalance) {
  const std::string path = new_path();
  GPipe pipe = pipeline({2, 2});
  auto optimizer = adam(pipe);
  train(pipe, optimizer, 0, 3);
  save_checkpoint(pipe, optimizer, {3, 18, {}}, path);
  train(pipe, optimizer, 3, 6);

  torch::manual_seed(99);
  GPipe resumed = pipeline({1, 2, 1});
  auto resumed_optimizer = adam(resumed);
  const Progress progress = load_checkpoint(resumed, resumed_optimizer, path);
  EXPECT_EQ(progress.step, 3);
  EXPECT_EQ(progress.rows, 18);
  train(resumed, resumed_optimizer, progress.step, 6);
  expect_same_state(pipe, resumed);
}

TEST(Checkpoint, ReplacesAnOldOne) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  save_checkpoint(pipe, optimizer, {}, path);
  train(pipe, optimizer, 0, 1);
  save_checkpoint(pipe, optimizer, {1, 6, {}}, path);
  GPipe other = pipeline({4});
  auto other_optimizer = adam(other);
  EXPECT_EQ(load_checkpoint(other, other_optimizer, path).step, 1);
  expect_same_state(pipe, other);
}

TEST(Checkpoint, HasTheNamesOfThePlainModel) {
  const std::string path = new_path();
  GPipe pipe = pipeline({1, 3});
  auto optimizer = adam(pipe);
  train(pipe, optimizer, 0, 1);
  save_checkpoint(pipe, optimizer, {}, path);
  const safetensors::File file(path + "/model.safetensors");
  auto plain = model();
  for (const auto& parameter : plain->named_parameters()) {
    EXPECT_EQ(file.header().tensors.count(parameter.key()), 1) << parameter.key();
  }
  EXPECT_EQ(file.header().tensors.size(), 9);  // 6 parameters, 3 buffers
  const safetensors::File states(path + "/optimizer.safetensors");
  EXPECT_THAT(states.read("3.bias/exp_avg").sizes().vec(), ::testing::ElementsAre(3));
}

// What a pipeline, its optimizer and the generator had before.
class Refusal {
 public:
  Refusal() : optimizer_(adam(pipe_)) { train(pipe_, optimizer_, 0, 1); }

  template <typename Error>
  void expect(const std::string& path, const std::string& text) {
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : pipe_->parameters()) {
      before.push_back(parameter.detach().clone());
    }
    torch::manual_seed(7);
    EXPECT_THAT([&] { load_checkpoint(pipe_, optimizer_, path); },
                ThrowsMessage<Error>(HasSubstr(text)));
    const at::Tensor drawn = at::rand({3});
    torch::manual_seed(7);
    EXPECT_THAT(drawn, EqualsBitwise(at::rand({3})));
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_THAT(pipe_->parameters()[i], EqualsBitwise(before[i]));
    }
    EXPECT_EQ(optimizer_.state().size(), before.size());
  }

 private:
  GPipe pipe_ = pipeline({2, 2});
  torch::optim::Adam optimizer_;
};

std::string saved(int64_t width = 5) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4}, width);
  auto optimizer = adam(pipe);
  train(pipe, optimizer, 0, 1);
  save_checkpoint(pipe, optimizer, {1, 6, {}}, path);
  return path;
}

TEST(Checkpoint, OfAnotherModelIsRefused) {
  Refusal().expect<c10::ValueError>(saved(6), "F32 [6, 4]");
}

TEST(Checkpoint, OfAnotherOptimizerIsRefused) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4});
  torch::optim::SGD sgd(pipe->parameters(), 0.1);
  save_checkpoint(pipe, sgd, {}, path);
  Refusal().expect<c10::ValueError>(path, "torch::optim::SGD, not of torch::optim::Adam");
}

TEST(Checkpoint, ThatIsNotThereIsRefused) {
  Refusal().expect<std::runtime_error>(new_path(), "No such file");
}

TEST(Checkpoint, WithOneOtherByteIsRefused) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string path = saved();
    std::fstream file(path + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const auto last = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    file.close();
    Refusal().expect<std::runtime_error>(path, "when it was saved");
  }
}

// Two runs' files in one folder.
TEST(Checkpoint, OfFilesThatDoNotBelongTogetherIsRefused) {
  const std::string path = saved(), other = saved();
  ASSERT_EQ(rename((other + "/model.safetensors").c_str(), (path + "/model.safetensors").c_str()),
            0);
  Refusal().expect<std::runtime_error>(path, "when it was saved");
}

TEST(Checkpoint, ThatCannotBeWrittenLeavesTheOldOne) {
  const std::string path = saved();
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  GPipe stranger = pipeline({4});
  auto strange_optimizer = adam(stranger);
  EXPECT_THAT(
      [&] {
        save_checkpoint(pipe, strange_optimizer, {5, 30, {}}, path);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("none of the model's")));
  EXPECT_THAT(
      [&] {
        save_checkpoint(pipe, optimizer, {-1, 0, {}}, path);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("-1 steps")));
  EXPECT_EQ(load_checkpoint(pipe, optimizer, path).step, 1);
}

}  // namespace
}  // namespace gpipe
