#include "gpipe/internal/processes/tied_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/placement.h"
#include "tied/tied_layer.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

struct WeightImpl : torch::nn::Module {
  explicit WeightImpl(const at::Tensor& weight) { register_parameter("weight", weight); }
  at::Tensor forward(at::Tensor x) { return x; }
};
TORCH_MODULE(Weight);

Layer layer(const std::string& name, const at::Tensor& weight) {
  return {torch::nn::AnyModule(Weight(weight)), name, 0, skip::CallPlan(*Weight(weight))};
}

// Returns stages whose layers have these weights. `weights`: [stage].
std::vector<std::vector<Layer>> stages_of(const std::vector<std::vector<at::Tensor>>& weights) {
  std::vector<std::vector<Layer>> stages;
  int64_t index = 0;
  for (const auto& of_stage : weights) {
    std::vector<Layer>& layers = stages.emplace_back();
    for (const at::Tensor& weight : of_stage)
      layers.push_back(layer(std::to_string(index++), weight));
  }
  return stages;
}

Places places(int64_t stages, std::vector<int64_t> processes, int64_t size) {
  return places_of(StageMap(Placement::one_each(stages).processes(std::move(processes)), 0, size),
                   static_cast<size_t>(stages));
}

std::string text(const std::vector<TiedEdge>& edges) {
  std::string text;
  for (const TiedEdge& edge : edges) {
    text += std::to_string(edge.parameter) + ":" + std::to_string(edge.source_stage) + "-" +
            std::to_string(edge.target_stage) + " ";
  }
  return text;
}

at::Tensor weight() { return torch::ones({2}); }

TEST(TiedParameters, AreWhatSeveralProcessesHave) {
  const at::Tensor head = weight(), inner = weight();
  // `inner` is used in one process only, so it is not tied.
  const auto stages =
      stages_of({{head, weight()}, {inner, inner}, {inner}, {weight(), head, head}});
  const Places over = places(4, {0, 1, 1, 2}, 3);
  const std::vector<TiedParameter> tied = tied_parameters_of(stages, over);
  ASSERT_EQ(tied.size(), 1u);
  EXPECT_EQ(tied[0].name, "0.weight");
  EXPECT_TRUE(tied[0].tensor.is_same(head));
  EXPECT_THAT(tied[0].stages, ElementsAre(0, 3));
  EXPECT_EQ(text(edges_of(tied, over)), "0:0-3 ");
  EXPECT_TRUE(tied_parameters_of(stages, places(4, {0, 0, 0, 0}, 1)).empty());
}

struct BorrowerImpl : torch::nn::Module, TiedLayer {
  explicit BorrowerImpl(at::Tensor weight) : weight(std::move(weight)) {}
  at::Tensor forward(at::Tensor x) { return x; }
  std::vector<at::Tensor> tied_parameters() const override { return {weight}; }
  at::Tensor weight;
};
TORCH_MODULE(Borrower);

TEST(TiedParameters, ALayerNamesWhatItUsesAndHasNotRegistered) {
  const at::Tensor a = weight();
  auto stages = stages_of({{a}, {weight()}});
  const Borrower borrower(a);
  stages[1].push_back({torch::nn::AnyModule(borrower), "2", 2, skip::CallPlan(*borrower)});
  const Places over = places(2, {0, 1}, 2);
  const std::vector<TiedParameter> tied = tied_parameters_of(stages, over);
  ASSERT_EQ(tied.size(), 1u);
  EXPECT_EQ(tied[0].name, "0.weight");
  EXPECT_THAT(tied[0].stages, ElementsAre(0, 1));
  std::swap(stages[0], stages[1]);
  EXPECT_THROW((void)tied_parameters_of(stages, over), c10::ValueError);
}

TEST(TiedParameters, OnDevicesTheyAreTheSame) {
  const c10::Device cpu(c10::kCPU), first(c10::kMeta, 0), second(c10::kMeta, 1);
  EXPECT_THAT(places_of({first, second, first, cpu, second}), ElementsAre(0, 1, 0, 3, 1));
  const at::Tensor a = weight();
  const auto stages = stages_of({{a}, {weight()}, {a}});
  EXPECT_TRUE(tied_parameters_of(stages, places_of({first, second, first})).empty());
  const Places over = places_of({first, first, second});
  const std::vector<TiedParameter> tied = tied_parameters_of(stages, over);
  ASSERT_EQ(tied.size(), 1u);
  EXPECT_EQ(text(edges_of(tied, over)), "0:0-2 ");
}

TEST(TiedParameters, TermsGoFromUseToUseBetweenProcesses) {
  const at::Tensor a = weight(), b = weight();
  const auto stages = stages_of({{a}, {a, b}, {a}, {b}, {a}});
  const Places over = places(5, {0, 1, 1, 0, 0}, 2);
  const std::vector<TiedParameter> tied = tied_parameters_of(stages, over);
  ASSERT_EQ(tied.size(), 2u);
  EXPECT_THAT(tied[0].stages, ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(tied[1].stages, ElementsAre(1, 3));
  EXPECT_EQ(text(edges_of(tied, over)), "0:0-1 0:2-4 1:1-3 ");
}

}  // namespace
}  // namespace gpipe::internal
