#include "gpipe/internal/processes/late_registrations.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/placement.h"
#include "gpipe/testing/processes_of_two.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace nn = torch::nn;

// A layer with a child, as many layers have.
struct LateImpl : nn::Module {
  LateImpl() { inner = register_module("inner", nn::Linear(2, 3)); }
  at::Tensor forward(const at::Tensor& x) { return x; }
  using nn::Module::unregister_module;
  nn::Linear inner{nullptr};
};

// Two layers, "0" and "1", as one of two processes has them. Each process has one stage, or a
// replica of both.
struct Side {
  explicit Side(int64_t rank, int64_t replicas = 1)
      : late(partitions_of(model(),
                           replicas == 1 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{2}),
             StageMap(Placement::one_each(2 / replicas), rank % (2 / replicas), 2 / replicas),
             World(std::make_shared<testing::ProcessesOfTwo>(rank), rank, 2)
                 .grid(replicas, 2 / replicas)) {}

  nn::Sequential model() {
    nn::Sequential module;
    for (const auto& layer : layers) module->push_back(layer);
    return module;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (size_t k = 0; k < layers.size(); ++k) {
      const std::string key = std::to_string(k) + ".";
      for (const auto& item : layers[k]->named_parameters()) all.push_back(key + item.key());
      for (const auto& item : layers[k]->named_buffers()) all.push_back(key + item.key());
    }
    return all;
  }

  std::vector<std::shared_ptr<LateImpl>> layers = {std::make_shared<LateImpl>(),
                                                   std::make_shared<LateImpl>()};
  LateRegistrations late;
};

void tell(Side& first, Side& second) {
  const std::vector<std::string> news = {first.late.news(), second.late.news()};
  first.late.know(first.late.take(news));
  second.late.know(second.late.take(news));
}

std::string found(LateRegistrations& late, const std::vector<std::string>& news) {
  try {
    late.take(news);
  } catch (const FoundByAll& found) {
    try {
      std::rethrow_exception(found.error);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
  }
  return "nothing";
}

TEST(LateRegistrations, AreNamedInAllProcesses) {
  Side first(0);
  Side second(1);
  EXPECT_EQ(first.late.news() + second.late.news(), "");
  first.layers[0]->register_parameter("late", at::zeros({2, 3}, at::kDouble));
  const auto made = first.layers[0]->inner->register_module("made", nn::Linear(4, 5));
  first.layers[0]->register_buffer("count", at::zeros({}, at::kLong));
  second.layers[1]->inner->register_parameter("frozen", at::zeros({7}), /*requires_grad=*/false);
  // The second process does not report this parameter, because another process has its layer.
  second.layers[0]->register_parameter("late", at::zeros({2, 3}, at::kDouble));
  tell(first, second);
  EXPECT_EQ(first.names(), second.names());
  EXPECT_THAT(second.names(), ElementsAre("0.late", "0.inner.weight", "0.inner.bias",
                                          "0.inner.made.weight", "0.inner.made.bias", "0.count",
                                          "1.inner.weight", "1.inner.bias", "1.inner.frozen"));
  const at::Tensor told = second.layers[0]->named_parameters()["inner.made.weight"];
  EXPECT_TRUE(told.is_meta());
  EXPECT_TRUE(told.requires_grad());
  EXPECT_EQ(told.sizes(), (std::vector<int64_t>{5, 4}));
  EXPECT_EQ(second.layers[0]->named_buffers()["count"].scalar_type(), at::kLong);
  EXPECT_FALSE(first.layers[1]->named_parameters()["inner.frozen"].requires_grad());
  EXPECT_FALSE(first.layers[0]->named_parameters()["late"].is_meta()) << "its owner keeps it";
  // All processes know the registrations now, so there is no news.
  EXPECT_EQ(first.late.news() + second.late.news(), "");
  first.layers[0]->inner->register_parameter("later", at::zeros({1}));
  tell(first, second);
  EXPECT_EQ(first.names(), second.names());
}

TEST(LateRegistrations, OneTensorUnderTwoNamesIsOneEverywhere) {
  Side first(0);
  Side second(1);
  const at::Tensor weight = first.layers[0]->inner->weight;
  first.layers[0]->register_parameter("again", weight);
  const at::Tensor late = first.layers[0]->register_parameter("late", at::zeros({2}));
  first.layers[0]->inner->register_parameter("late_again", late);
  tell(first, second);
  auto named = second.layers[0]->named_parameters();
  EXPECT_TRUE(named["again"].is_same(named["inner.weight"]));
  EXPECT_TRUE(named["inner.late_again"].is_same(named["late"]));
  EXPECT_EQ(first.names(), second.names());
}

TEST(LateRegistrations, WhatIsGoneIsNamedByAll) {
  Side first(0);
  Side second(1);
  first.layers[0]->unregister_module("inner");
  const std::vector<std::string> news = {first.late.news(), second.late.news()};
  EXPECT_THAT(found(first.late, news),
              AllOf(HasSubstr("layer 0 ('0')"), HasSubstr("parameter inner.weight")));
  EXPECT_EQ(found(second.late, news), found(first.late, news));
}

// A name that LibTorch refuses in one process is not known, so the news of it is repeated. LibTorch
// refuses this name because an undefined tensor, which it does not list, has it.
TEST(LateRegistrations, ANameThatIsTakenIsNotKnownUntilAllHaveIt) {
  Side first(0);
  Side second(1);
  second.layers[0]->register_parameter("late", at::Tensor(), /*requires_grad=*/false);
  first.layers[0]->register_parameter("late", at::zeros({2}));
  const std::vector<std::string> news = {first.late.news(), second.late.news()};
  (void)first.late.take(news);
  EXPECT_THROW((void)second.late.take(news), c10::Error);
  EXPECT_EQ(first.late.news(), news[0]) << "the news is repeated";
}

TEST(LateRegistrations, ReplicasMustRegisterTheSame) {
  Side first(0, /*replicas=*/2);
  Side second(1, /*replicas=*/2);
  first.layers[0]->register_parameter("late", at::zeros({2}));
  const std::vector<std::string> news = {first.late.news(), second.late.news()};
  EXPECT_THAT(found(first.late, news), HasSubstr("on ranks 0 and 1"));
  EXPECT_EQ(found(second.late, news), found(first.late, news));
  second.layers[0]->register_parameter("late", at::zeros({2}));
  tell(first, second);
  EXPECT_EQ(first.late.news() + second.late.news(), "");
}

// If each replica draws its own numbers in its first forward, the parameters differ, which is
// refused. Buffers may differ between replicas.
TEST(LateRegistrations, ReplicasMustRegisterTheSameValues) {
  Side first(0, /*replicas=*/2);
  Side second(1, /*replicas=*/2);
  for (Side* side : {&first, &second}) {
    const double own = side == &first ? 1 : 2;
    side->layers[1]->register_buffer("count", at::full({2}, own));
    side->layers[1]->register_parameter("scale", at::ones({2}));
    side->layers[1]->register_parameter("late", at::full({2}, own));
  }
  const std::vector<std::string> news = {first.late.news(), second.late.news()};
  EXPECT_THAT(found(first.late, news),
              AllOf(HasSubstr("'1.late' in a forward, and it has other values on rank 1 than on "
                              "rank 0"),
                    HasSubstr("torch::manual_seed")));
  EXPECT_EQ(found(second.late, news), found(first.late, news));
  at::NoGradGuard no_grad;
  second.layers[1]->named_parameters(false)["late"].fill_(1);
  tell(first, second);
  EXPECT_EQ(first.late.news() + second.late.news(), "");
}

}  // namespace
}  // namespace gpipe::internal
