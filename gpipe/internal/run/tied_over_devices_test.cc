#include "gpipe/internal/run/tied_over_devices.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "tied/tied_layer.h"

namespace gpipe::internal {
namespace {

struct FirstImpl : torch::nn::Module {
  FirstImpl() : weight(register_parameter("weight", at::ones(2))) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
TORCH_MODULE(First);

// A layer that uses the weight of another layer.
struct LaterImpl : torch::nn::Module, TiedLayer {
  explicit LaterImpl(at::Tensor of) : weight(std::move(of)) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  std::vector<at::Tensor> tied_parameters() const override { return {weight}; }
  void use_tied_parameters(const std::vector<at::Tensor>& parameters) override {
    weight = parameters.at(0);
  }
  at::Tensor weight;
};
TORCH_MODULE(Later);

constexpr c10::DeviceType kFirst = c10::kCPU;
constexpr c10::DeviceType kOther = c10::kMeta;

// Whether two pipelines over one model exclude each other's runs. Each layer is a stage, on a
// device of the type that `types` gives.
bool share_the_lock(const torch::nn::Sequential& model, const std::vector<c10::DeviceType>& types) {
  const std::vector<c10::Device> devices(types.begin(), types.end());
  const auto partitions = partitions_of(model, std::vector<int64_t>(types.size(), 1));
  const TiedOverDevices one(partitions, devices);
  const TiedOverDevices another(partitions, devices);
  return one.run_lock().excludes(another.run_lock());
}

TEST(TiedOverDevices, PipelinesThatGiveCopiesToOneLayerShareTheLock) {
  const First first;
  const torch::nn::Sequential model(first, torch::nn::Linear(2, 2), Later(first->weight));
  EXPECT_TRUE(share_the_lock(model, {kFirst, kFirst, kOther}));
  // The weight is used on another device first, so the copy is on the first stage's device. The
  // pipelines share the lock in this case, too.
  const First behind;
  const torch::nn::Sequential other(torch::nn::Linear(2, 2), behind, Later(behind->weight));
  EXPECT_TRUE(share_the_lock(other, {kFirst, kOther, kFirst}));
  // On one device there are no copies, so the runs may overlap.
  EXPECT_FALSE(share_the_lock(model, {kFirst, kFirst, kFirst}));
}

// Two pipelines over different layers do not exclude each other's runs. A third pipeline, which has
// the layers of both, excludes the runs of each.
TEST(TiedOverDevices, APipelineExcludesAllThatGiveItsLayersCopies) {
  const auto tied_over = [](const torch::nn::Sequential& model) {
    return TiedOverDevices(partitions_of(model, {1, 1}),
                           {c10::Device(kFirst), c10::Device(kOther)});
  };
  const First a, b;
  const Later of_a(a->weight), of_b(b->weight);
  const TiedOverDevices one = tied_over(torch::nn::Sequential(a, of_a));
  const TiedOverDevices another = tied_over(torch::nn::Sequential(b, of_b));
  EXPECT_FALSE(one.run_lock().excludes(another.run_lock()));
  const TiedOverDevices both =
      TiedOverDevices(partitions_of(torch::nn::Sequential(a, b, of_a, of_b), {2, 2}),
                      {c10::Device(kFirst), c10::Device(kOther)});
  EXPECT_TRUE(both.run_lock().excludes(one.run_lock()));
  EXPECT_TRUE(both.run_lock().excludes(another.run_lock()));
  EXPECT_FALSE(one.run_lock().excludes(another.run_lock()));
  EXPECT_TRUE(tied_over(torch::nn::Sequential(b, of_b)).run_lock().excludes(both.run_lock()));
}

}  // namespace
}  // namespace gpipe::internal
