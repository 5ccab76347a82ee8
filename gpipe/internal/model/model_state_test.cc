#include "gpipe/internal/model/model_state.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Block = testing::FunctionImpl<at::Tensor, at::Tensor>;

std::shared_ptr<Block> block() {
  return testing::layer<at::Tensor, at::Tensor>([](at::Tensor x) { return x; });
}

// A module with a parameter 'weight'.
std::shared_ptr<Block> weighted() {
  auto module = block();
  module->register_parameter("weight", at::ones({3}));
  return module;
}

at::Tensor weight_of(const std::shared_ptr<Block>& module) {
  return module->named_parameters(/*recurse=*/false)["weight"];
}

using Stages = std::vector<std::vector<std::shared_ptr<Block>>>;

// The layers are called "a", "b", ... through the whole model.
ModelState state_of(const Stages& stages, std::vector<ModelState::Tied> tied = {}) {
  std::vector<std::vector<Layer>> partitions(stages.size());
  std::vector<const std::vector<Layer>*> pointers;
  int64_t index = 0;
  for (size_t j = 0; j < stages.size(); ++j) {
    for (const auto& module : stages[j]) {
      partitions[j].push_back({torch::nn::AnyModule(module),
                               std::string(1, static_cast<char>('a' + index)), index,
                               skip::CallPlan(*module)});
      ++index;
    }
    pointers.push_back(&partitions[j]);
  }
  return ModelState(pointers, std::move(tied));
}

// The message of the c10::Error that `call` throws; "" if it throws none.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ModelStateTest, KnowsACopyAsItsParameter) {
  const auto first = weighted();
  const at::Tensor weight = weight_of(first);
  const at::Tensor copy = at::empty({3}, at::TensorOptions().device(c10::kMeta));
  const ModelState state = state_of({{first}, {weighted()}, {}}, {{weight, {0, 2}, {copy}}});
  EXPECT_EQ(state.parameters().size(), 2u);
  ASSERT_NE(state.find(copy), nullptr);
  EXPECT_EQ(state.find(copy), state.find(weight));
  EXPECT_THAT(state.find(copy)->stages, ElementsAre(0, 2));
  EXPECT_TRUE(state.owns_as_parameter(storage_of(copy)));
  EXPECT_TRUE(state.used_on(c10::kMeta, weight).is_same(copy));
  EXPECT_TRUE(state.used_on(c10::kCPU, weight).is_same(weight));
  const at::Tensor other = weight_of(weighted());
  EXPECT_TRUE(state.used_on(c10::kMeta, other).is_same(other));
  weight.detach().mul_(2);
  EXPECT_THAT(refusal([&] { state.check_parameters(2); }),
              HasSubstr("'a.weight' has been modified"));
  EXPECT_EQ(refusal([&] { state.check_parameters(1); }), "");
  // If the layer has another parameter by now, the former parameter and its copy are not found.
  EXPECT_EQ(state_of({{weighted()}}, {{weight, {0}, {copy}}}).find(copy), nullptr);
}

TEST(ModelStateTest, HasEachParameterOnceUnderItsFirstName) {
  const auto shared = weighted();
  const auto frozen = weighted();
  weight_of(frozen).requires_grad_(false).zero_();
  const auto nested = block();
  nested->register_module("inner", frozen);
  nested->register_parameter("absent", at::Tensor(), /*requires_grad=*/false);
  const ModelState state = state_of({{shared}, {nested}, {shared, shared}, {}});
  ASSERT_EQ(state.parameters().size(), 2u);
  const ModelState::Parameter& first = state.parameters()[0];
  EXPECT_EQ(first.name, "a.weight");
  EXPECT_TRUE(first.tensor.is_same(weight_of(shared)));
  EXPECT_THAT(first.stages, ElementsAre(0, 2));
  EXPECT_TRUE(first.requires_grad);
  EXPECT_EQ(first.version, version_of(weight_of(shared)));
  EXPECT_EQ(first.storage, storage_of(weight_of(shared)));
  const ModelState::Parameter& second = state.parameters()[1];
  EXPECT_EQ(second.name, "b.inner.weight");
  EXPECT_THAT(second.stages, ElementsAre(1));
  EXPECT_FALSE(second.requires_grad);
  EXPECT_EQ(second.version, version_of(weight_of(frozen)));
}

TEST(ModelStateTest, FindsOnlyRegisteredParameters) {
  const auto module = weighted();
  const at::Tensor buffer = module->register_buffer("buffer", at::ones({2}));
  const ModelState state = state_of({{module}});
  EXPECT_EQ(state.find(weight_of(module)), &state.parameters()[0]);
  EXPECT_EQ(state.find(weight_of(module).detach()), nullptr) << "another tensor over its memory";
  EXPECT_EQ(state.find(buffer), nullptr);
  EXPECT_EQ(state.find(at::ones({3})), nullptr);
  EXPECT_EQ(state.find(at::Tensor()), nullptr);
  EXPECT_EQ(ModelState().find(weight_of(module)), nullptr);
  EXPECT_TRUE(ModelState().parameters().empty());
}

TEST(ModelStateTest, OwnsTheMemoryOfParametersAndBuffers) {
  const auto module = weighted();
  const at::Tensor weight = weight_of(module);
  const at::Tensor buffer = module->register_buffer("buffer", at::ones({2}));
  module->register_buffer("over_weight", weight.detach());
  module->register_buffer("absent", at::Tensor());
  const at::Tensor other = at::ones({2});
  const ModelState state = state_of({{}, {module}});
  EXPECT_TRUE(state.owns(storage_of(weight)));
  EXPECT_TRUE(state.owns(storage_of(weight.detach().narrow(0, 1, 1))));
  EXPECT_TRUE(state.owns(storage_of(buffer)));
  EXPECT_FALSE(state.owns(storage_of(other)));
  EXPECT_TRUE(state.owns_as_parameter(storage_of(weight)));
  EXPECT_FALSE(state.owns_as_parameter(storage_of(buffer)));
  EXPECT_FALSE(state.owns_as_parameter(storage_of(other)));
  EXPECT_FALSE(ModelState().owns(storage_of(weight)));
}

TEST(ModelStateTest, AChangedParameterIsNamedInEachOfItsStagesOnly) {
  const auto first = weighted();
  const auto second = weighted();
  const ModelState state = state_of({{first}, {second}, {block(), first}});
  for (int64_t stage : {0, 1, 2}) EXPECT_NO_THROW(state.check_parameters(stage));
  weight_of(first).detach().narrow(0, 1, 1).zero_();
  for (int64_t stage : {0, 2}) {
    EXPECT_THAT(refusal([&] { state.check_parameters(stage); }),
                AllOf(HasSubstr("'a.weight'"), HasSubstr("inplace operation")));
  }
  EXPECT_NO_THROW(state.check_parameters(1));
  const ModelState anew = state_of({{first}, {second}});
  EXPECT_NO_THROW(anew.check_parameters(0));
  weight_of(second).set_data(at::zeros({3}));  // as Module::to() does
  EXPECT_NO_THROW(anew.check_parameters(0));
  EXPECT_THAT(refusal([&] { anew.check_parameters(1); }),
              HasSubstr("'b.weight' has been given other memory"));
}

// Makes a change between forward and backward, in the second stage, and returns what check_same()
// says if that stage recomputes. If only the first stage recomputes, check_same() must say nothing.
std::string difference(const std::shared_ptr<Block>& module,
                       const std::function<void(Stages&)>& change) {
  Stages stages = {{weighted()}, {block(), module}};
  const ModelState before = state_of(stages);
  EXPECT_EQ(refusal([&] { before.check_same(state_of(stages), {true, true}); }), "");
  change(stages);
  const ModelState now = state_of(stages);
  EXPECT_EQ(refusal([&] { before.check_same(now, {true, false}); }), "");
  EXPECT_EQ(refusal([&] { now.check_same(now, {true, true}); }), "");
  return refusal([&] { before.check_same(now, {false, true}); });
}

TEST(ModelStateTest, AChangedParameterIsADifference) {
  const auto module = weighted();
  EXPECT_THAT(difference(module, [&](Stages&) { weight_of(module).detach().zero_(); }),
              HasSubstr("'c.weight'"));
}

TEST(ModelStateTest, AReplacedParameterIsADifference) {
  struct Open : Block {
    using Block::Block;
    using Module::parameters_;
  };
  const auto module = std::make_shared<Open>([](at::Tensor x) { return x; });
  module->register_parameter("weight", at::ones({3}));
  EXPECT_THAT(difference(module, [&](Stages&) { module->parameters_["weight"] = at::ones({3}); }),
              HasSubstr("replaced in stage 1"));
  EXPECT_THAT(
      difference(weighted(),
                 [](Stages& stages) { stages[1][1]->register_parameter("late", at::ones({1})); }),
      HasSubstr("replaced in stage 1"));
}

TEST(ModelStateTest, RequiresGradIsADifference) {
  const auto module = weighted();
  auto flip = [&](Stages&) {
    weight_of(module).requires_grad_(!weight_of(module).requires_grad());
  };
  EXPECT_THAT(difference(module, flip), HasSubstr("requires_grad of 'c.weight' was set to false"));
  EXPECT_THAT(difference(module, flip), HasSubstr("requires_grad of 'c.weight' was set to true"));
}

TEST(ModelStateTest, AModulesModeIsADifference) {
  const auto inner = block();
  const auto module = weighted();
  module->register_module("inner", inner);
  EXPECT_THAT(difference(module, [&](Stages&) { inner->eval(); }),
              HasSubstr("'c.inner' was set to eval mode"));
  EXPECT_THAT(difference(module, [&](Stages&) { inner->train(); }),
              HasSubstr("'c.inner' was set to train mode"));
  EXPECT_THAT(difference(module, [&](Stages&) { module->eval(); }),
              HasSubstr("'c' was set to eval mode"));
  EXPECT_THAT(difference(module, [](Stages& stages) { stages[1][0]->eval(); }),
              HasSubstr("'b' was set to eval mode"))
      << "the first layer of those that are recomputed";
}

TEST(ModelStateTest, AReplacedModuleIsADifference) {
  const auto module = block();
  module->register_module("inner", block());
  Stages stages = {{weighted()}, {module}};
  const ModelState before = state_of(stages);
  module->replace_module("inner", block());
  EXPECT_THAT(refusal([&] {
                before.check_same(state_of(stages), {false, true});
              }),
              HasSubstr("a module was replaced"));
}

TEST(ModelStateTest, AModuleReplacedWhereNothingIsRecomputedDoesNotMatter) {
  const auto module = block();
  module->register_module("inner", block());
  Stages stages = {{weighted()}, {module}};
  const ModelState before = state_of(stages);
  module->replace_module("inner", block());
  EXPECT_EQ(refusal([&] { before.check_same(state_of(stages), {true, false}); }), "");
}

TEST(ModelStateTest, MemoryOfAParameterIsThatWhicheverLayerAlsoHasItAsABuffer) {
  const auto later = weighted();
  const auto earlier = block();
  earlier->register_buffer("buffer", weight_of(later).detach());
  EXPECT_TRUE(state_of({{earlier}, {later}}).owns_as_parameter(storage_of(weight_of(later))));
  EXPECT_TRUE(state_of({{later}, {earlier}}).owns_as_parameter(storage_of(weight_of(later))));
}

TEST(ModelStateTest, APlaceInTheModelDoesNotDependOnTheBalance) {
  const auto first = weighted(), tied = weighted(), last = weighted();
  const ModelState whole = state_of({{first, tied, tied, last}});
  const ModelState cut = state_of({{first}, {tied}, {tied, last}});
  for (const auto& module : {first, tied, last}) {
    for (const at::Tensor& parameter : module->parameters()) {
      ASSERT_TRUE(whole.number_of(parameter));
      EXPECT_EQ(whole.number_of(parameter), cut.number_of(parameter));
      EXPECT_TRUE(whole.parameters()[*whole.number_of(parameter)].tensor.is_same(parameter));
    }
  }
  EXPECT_FALSE(whole.number_of(at::ones({1})));
}

TEST(ModelStateTest, ASparseParameterHasNoMemoryToOwn) {
  const auto module = block();
  module->register_parameter("sparse", at::ones({3}).to_sparse());
  module->register_buffer("sparse_buffer", at::ones({3}).to_sparse());
  EXPECT_FALSE(state_of({{module}}).owns(nullptr));
}

}  // namespace
}  // namespace gpipe::internal
