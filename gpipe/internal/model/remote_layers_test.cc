#include "gpipe/internal/model/remote_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::EqualsBitwise;

TEST(RemoteLayers, TensorsStayTheSameObjectsAndHaveNoMemory) {
  torch::nn::Linear linear(3, 2);
  const at::Tensor weight = linear->weight;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory = weight.storage().getWeakStorageImpl();
  linear->forward(torch::ones({1, 3})).sum().backward();
  move_to_meta(*linear);
  EXPECT_TRUE(linear->weight.is_same(weight));
  EXPECT_TRUE(linear->weight.is_meta());
  EXPECT_TRUE(memory.expired()) << "the memory is still there";
  EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(RemoteLayers, BuffersTooAlsoCountersAndUndefinedOnes) {
  torch::nn::BatchNorm1d norm(4);
  torch::nn::BatchNorm1d without(torch::nn::BatchNorm1dOptions(4).track_running_stats(false));
  move_to_meta(*norm);
  move_to_meta(*without);
  EXPECT_TRUE(norm->running_mean.is_meta());
  EXPECT_TRUE(norm->num_batches_tracked.is_meta());
  EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
}

TEST(RemoteLayers, MemoryComesBackAndGradientsWithIt) {
  torch::nn::Linear linear(2, 2);
  const at::Tensor input = torch::ones({1, 2});
  linear->forward(input).sum().backward();  // so that parameters have an accumulator of the CPU
  move_to_meta(*linear);
  for (const at::Tensor& parameter : linear->parameters()) {
    give_memory(parameter, c10::kCPU);
    const at::NoGradGuard no_grad;
    parameter.fill_(0.5);
  }
  const at::Tensor output = linear->forward(input);
  output.sum().backward();
  EXPECT_THAT(output, EqualsBitwise(torch::full({1, 2}, 1.5)));
  EXPECT_THAT(linear->weight.grad(), EqualsBitwise(torch::ones({2, 2})));
}

TEST(RemoteLayers, StridesStay) {
  torch::nn::Linear linear(2, 3);
  linear->weight.set_data(torch::ones({2, 3}).t());
  move_to_meta(*linear);
  give_memory(linear->weight, c10::kCPU);
  EXPECT_EQ(linear->weight.strides(), (std::vector<int64_t>{1, 3}));
}

TEST(RemoteLayers, MaterializeFillsWhatIsOnMetaAndNothingElse) {
  torch::nn::BatchNorm1d norm(2);
  move_to_meta(*norm, {norm->weight.unsafeGetTensorImpl()});
  give_memory(norm->running_var, c10::kCPU);
  norm->running_var.fill_(3);
  std::vector<std::string> names;
  materialize(*norm, "layer.", c10::kCPU, 1,
              [&](const std::string& name, at::Tensor& tensor, at::Generator /*generator*/) {
                names.push_back(name);
                tensor.fill_(7);
              });
  EXPECT_THAT(names, ElementsAre("layer.bias", "layer.running_mean", "layer.num_batches_tracked"));
  EXPECT_THAT(norm->weight, EqualsBitwise(torch::ones({2})));
  EXPECT_THAT(norm->bias, EqualsBitwise(torch::full({2}, 7.f)));
  EXPECT_THAT(norm->running_mean, EqualsBitwise(torch::full({2}, 7.f)));
  EXPECT_THAT(norm->running_var, EqualsBitwise(torch::full({2}, 3.f)));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 7);
}

}  // namespace
}  // namespace gpipe::internal
