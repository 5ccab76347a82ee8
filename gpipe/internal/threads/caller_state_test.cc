#include "gpipe/internal/threads/caller_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "gpipe/testing/bitwise.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;

// Runs `call` on a new thread, whose state is LibTorch's default.
template <typename Call>
void on_new_thread(const Call& call) {
  std::thread(call).join();
}

struct Autocast {
  bool enabled;
  c10::ScalarType cpu, cuda, private_use;
  bool operator==(const Autocast& other) const {
    return enabled == other.enabled && cpu == other.cpu && cuda == other.cuda &&
           private_use == other.private_use;
  }
};

Autocast autocast() {
  using at::autocast::get_autocast_dtype;
  return {at::autocast::is_autocast_enabled(at::kCPU), get_autocast_dtype(at::kCPU),
          get_autocast_dtype(at::kCUDA), get_autocast_dtype(at::kPrivateUse1)};
}

void set(const Autocast& value) {
  using at::autocast::set_autocast_dtype;
  at::autocast::set_autocast_enabled(at::kCPU, value.enabled);
  set_autocast_dtype(at::kCPU, value.cpu);
  set_autocast_dtype(at::kCUDA, value.cuda);
  set_autocast_dtype(at::kPrivateUse1, value.private_use);
}

// None of these values is a default.
constexpr Autocast kOfCaller = {true, at::kHalf, at::kBFloat16, at::kDouble};

TEST(CallerStateTest, GradModeAndInferenceModeHoldOnTheWorkerWhileTheScopeLives) {
  std::optional<CallerState> no_grad;
  std::optional<CallerState> inference;
  {
    const c10::NoGradGuard guard;
    no_grad.emplace();
  }
  {
    const c10::InferenceMode guard;
    inference.emplace();
  }
  on_new_thread([&] {
    {
      const CallerStateScope scope(*no_grad);
      EXPECT_FALSE(c10::GradMode::is_enabled());
      EXPECT_FALSE(c10::InferenceMode::is_enabled());
      {
        const CallerStateScope inner(*inference);
        EXPECT_TRUE(c10::InferenceMode::is_enabled());
        EXPECT_TRUE(at::ones({1}).is_inference());
      }
      EXPECT_FALSE(c10::InferenceMode::is_enabled());
      EXPECT_FALSE(c10::GradMode::is_enabled());
    }
    EXPECT_TRUE(c10::GradMode::is_enabled());
    EXPECT_FALSE(at::ones({1}).is_inference());
  });
}

TEST(CallerStateTest, AModeThatTheWorkerHasAndTheCallerHasNotIsOffInTheScope) {
  const CallerState state;
  on_new_thread([&] {
    const c10::NoGradGuard no_grad;
    set(kOfCaller);
    {
      const CallerStateScope scope(state);
      EXPECT_TRUE(c10::GradMode::is_enabled());
      EXPECT_FALSE(autocast().enabled);
    }
    EXPECT_FALSE(c10::GradMode::is_enabled());
    EXPECT_TRUE(autocast() == kOfCaller);
  });
}

TEST(CallerStateTest, AutocastHoldsWithTheCallersDtypesOfEveryDevice) {
  std::optional<CallerState> state;
  on_new_thread([&] {
    set(kOfCaller);
    state.emplace();
    set({false, at::kDouble, at::kDouble, at::kHalf});  // `state` is a snapshot, and stays
  });
  const Autocast before = autocast();
  {
    const CallerStateScope scope(*state);
    EXPECT_TRUE(autocast() == kOfCaller);
    EXPECT_EQ(at::ones({2, 2}).mm(at::ones({2, 2})).scalar_type(), at::kHalf);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kDouble);  // the change ends with the scope
  }
  EXPECT_TRUE(autocast() == before);
  EXPECT_EQ(at::ones({2, 2}).mm(at::ones({2, 2})).scalar_type(), at::kFloat);
}

TEST(CallerStateTest, ACopyOutlivesItsOriginal) {
  std::optional<CallerState> copy;
  on_new_thread([&] {
    const c10::NoGradGuard no_grad;
    set(kOfCaller);
    const CallerState original;
    copy = original;
  });
  const CallerStateScope scope(*copy);
  EXPECT_FALSE(c10::GradMode::is_enabled());
  EXPECT_TRUE(autocast() == kOfCaller);
}

TEST(CallerStateTest, WhatLibTorchLeavesOutOfItsOwnStateHoldsToo) {
  std::optional<CallerState> state;
  on_new_thread([&] {
    at::globalContext().setFlushDenormal(true);
    torch::jit::setGraphExecutorOptimize(false);
    const at::NoTF32Guard no_tf32;
    state.emplace();
  });
  const CallerState usual;
  on_new_thread([&] {
    {
      const CallerStateScope scope(*state);
      EXPECT_TRUE(FloatMode() == state->floats());
      EXPECT_FALSE(torch::jit::getGraphExecutorOptimize());
      EXPECT_TRUE(at::NoTF32Guard::should_disable_tf32());
      const CallerStateScope inner(usual);
      EXPECT_TRUE(FloatMode() == usual.floats());
      EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
    }
    EXPECT_TRUE(FloatMode() == usual.floats());
    EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
    EXPECT_FALSE(at::NoTF32Guard::should_disable_tf32());
  });
}

std::atomic<int> observed = 0;

TEST(CallerStateTest, RecordFunctionCallbacksOfTheCallerSeeTheWorkersOperators) {
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& /*function*/) -> std::unique_ptr<at::ObserverContext> {
        ++observed;
        return nullptr;
      }));
  const CallerState state;
  at::removeCallback(handle);
  observed = 0;
  on_new_thread([&] {
    (void)at::ones({1});
    EXPECT_EQ(observed, 0);
    {
      const CallerStateScope scope(state);
      (void)at::ones({1});
    }
    const int in_scope = observed;
    EXPECT_GT(in_scope, 0);
    (void)at::ones({1});
    EXPECT_EQ(observed, in_scope);
  });
}

// Products that autocast computes with a weight before and after the weight changes.
struct Products {
  at::Tensor before, after;
};
Products products_around_change() {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  auto product = [&] { return at::ones({2, 2}).mm(weight).detach().to(at::kFloat); };
  Products products;
  products.before = product();
  {
    const c10::NoGradGuard no_grad;
    weight.zero_();
  }
  products.after = product();
  return products;
}

TEST(AutocastCacheOffTest, EveryWeightIsCastAnew) {
  on_new_thread([] {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const AutocastCacheOff off;
    const Products products = products_around_change();
    EXPECT_THAT(products.before, EqualsBitwise(at::full({2, 2}, 2.0)));
    EXPECT_THAT(products.after, EqualsBitwise(at::zeros({2, 2})));
  });
}

TEST(AutocastCacheOffTest, HoldsOnThisThreadAndGivesBackWhatWasThere) {
  on_new_thread([] {
    using at::autocast::is_autocast_cache_enabled;
    ASSERT_TRUE(is_autocast_cache_enabled());
    {
      const AutocastCacheOff off;
      EXPECT_FALSE(is_autocast_cache_enabled());
      on_new_thread([] { EXPECT_TRUE(is_autocast_cache_enabled()); });
      { const AutocastCacheOff inner; }
      EXPECT_FALSE(is_autocast_cache_enabled()) << "it was off before the inner scope";
    }
    EXPECT_TRUE(is_autocast_cache_enabled());
  });
}

TEST(AutocastCacheOffTest, ALayerThatSwitchesTheCacheOnIsToldWhyNot) {
  on_new_thread([] {
    const at::Tensor weight = at::ones({2, 2}).requires_grad_();
    const at::Tensor x = at::ones({2, 2});
    const auto product = [&] {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_cache_enabled(true);
      try {
        (void)x.mm(weight);
        return std::string();
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
    };
    {
      const AutocastCacheOff off;
      const InterceptionScope cell;
      EXPECT_NE(product().find("leave it off in the layer's guard"), std::string::npos);
      // Autocast may still cast tensors whose casts it would not keep in its cache, e.g. `x`.
      EXPECT_EQ(x.mm(x).scalar_type(), at::kBFloat16);
      at::autocast::set_autocast_cache_enabled(false);
      EXPECT_EQ(x.mm(weight).scalar_type(), at::kBFloat16);
    }
    const InterceptionScope of_others;
    EXPECT_EQ(product(), "") << "outside of a pipeline";
    at::autocast::clear_cache();
  });
}

}  // namespace
}  // namespace gpipe::internal
