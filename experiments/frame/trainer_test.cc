#include "experiments/frame/trainer.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/resnet.h"

namespace gpipe::experiments {
namespace {

torch::nn::Sequential make_model() {
  at::manual_seed(3);
  return models::resnet(
      models::ResNetOptions({1, 1, 1, 1}).num_classes(5).base_planes(2).in_channels(1));
}

const Task& task() {
  static const Task task = {make_model, [](const at::Tensor& scores, const at::Tensor& labels) {
                              return at::cross_entropy_loss(scores, labels);
                            }};
  return task;
}

struct Data {
  at::Tensor images = at::arange(4 * 32 * 32, at::kFloat).mul(0.37).sin().reshape({4, 1, 32, 32});
  at::Tensor labels = at::arange(4, at::kLong);
};

std::set<std::string> names(Trainer& trainer) {
  std::set<std::string> names;
  for (const auto& item : trainer.module().named_parameters()) names.insert(item.key());
  for (const auto& item : trainer.module().named_buffers()) names.insert(item.key());
  return names;
}

GPipeOptions pipeline(int64_t chunks) {
  return GPipeOptions({20, 31}).devices({c10::kCPU, c10::kCPU}).chunks(chunks);
}

// With one micro-batch or one replica, batch norm sees the same statistics as in the plain network,
// so the three ways must give the same loss and gradients.
TEST(Trainer, ThreeWaysAreOneForAWholeBatch) {
  const Data data;
  const auto naive = make_naive_trainer(task(), c10::kCPU);
  std::vector<std::unique_ptr<Trainer>> others;
  others.push_back(make_data_parallel_trainer(task(), {c10::kCPU}));
  others.push_back(make_pipeline_trainer(task(), pipeline(1), Schedule::one_f_one_b));
  others.push_back(make_pipeline_trainer(task(), pipeline(1), Schedule::gpipe));
  const double loss = naive->step(data.images, data.labels);
  naive->module().eval();
  const at::Tensor scores = naive->predict(data.images);
  EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{4, 5}));
  EXPECT_FALSE(scores.requires_grad());
  for (const auto& other : others) {
    EXPECT_EQ(names(*other), names(*naive)) << "checkpoints of one way must fit the others";
    other->step(data.images, data.labels);
    other->module().train();
    // A second step replaces the gradients of the first and does not add to them. Its loss is the
    // same, because it does not depend on running statistics.
    EXPECT_NEAR(other->step(data.images, data.labels), loss, 1e-5);
    const auto expected = naive->module().named_parameters();
    for (const auto& item : other->module().named_parameters()) {
      EXPECT_TRUE(at::allclose(item.value().grad(), expected[item.key()].grad(), 1e-3, 1e-5))
          << item.key();
    }
  }
}

TEST(Trainer, SeveralMicroBatchesAndReplicas) {
  const Data data;
  const auto pipe = make_pipeline_trainer(task(), pipeline(2), Schedule::one_f_one_b);
  const auto parallel = make_data_parallel_trainer(task(), {c10::kCPU, c10::kCPU});
  // Two halves on replicas and two halves as micro-batches are the same computation, so the losses
  // must agree.
  EXPECT_NEAR(pipe->step(data.images, data.labels), parallel->step(data.images, data.labels), 1e-5);
  pipe->module().eval();
  EXPECT_EQ(pipe->predict(data.images).size(0), 4);
}

TEST(Trainer, WrongArguments) {
  EXPECT_THROW(make_pipeline_trainer(task(), GPipeOptions({20, 20}), Schedule::one_f_one_b),
               c10::ValueError);
  EXPECT_THROW(make_data_parallel_trainer(task(), {}), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::experiments
