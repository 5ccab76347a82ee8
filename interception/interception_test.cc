#include "interception/interception.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sgn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;

thread_local int seen = 0;

at::Tensor counted_sgn(c10::DispatchKeySet keys, const at::Tensor& self) {
  ++seen;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten::sgn", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.redispatch(after_interception(keys), self);
}

const Interceptor interceptor([](torch::Library& aten) { aten.impl("sgn", &counted_sgn); });

TEST(Interception, SeesOperatorsOfItsThreadInsideTheScopeAlone) {
  const at::Tensor x = -at::ones({3}).requires_grad_();
  seen = 0;
  at::sgn(x);
  EXPECT_EQ(seen, 0);
  {
    const InterceptionScope scope;
    EXPECT_THAT(at::sgn(x), EqualsBitwise(-at::ones({3})));
    EXPECT_TRUE(at::sgn(x).requires_grad()) << "the operator is not intercepted";
    EXPECT_EQ(seen, 2);
    {
      const InterceptionPause pause;
      at::sgn(x);
      EXPECT_EQ(seen, 2);
    }
    int elsewhere = -1;
    std::thread([&] {
      at::sgn(x);
      elsewhere = seen;
    }).join();
    EXPECT_EQ(elsewhere, 0);
  }
  at::sgn(x);
  EXPECT_EQ(seen, 2);
}

// The operators that have gone through the fallback of the FallbackInterceptor below.
thread_local std::vector<std::string> factory_calls;

void note_and_hand_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kFactoryKey);
  factory_calls.push_back(op.operator_name().name);
  op.redispatchBoxed(after_interception(keys, kFactoryKey), stack);
}

TEST(Interception, BothKeysSeeOneOperator) {
  static const FallbackInterceptor interceptor(kFactoryKey, [](torch::Library& all) {
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&note_and_hand_on>());
  });
  const at::Tensor x = -at::ones({3}).requires_grad_();
  seen = 0;
  factory_calls.clear();
  const c10::impl::IncludeDispatchKeyGuard factories(kFactoryKey);
  {
    const InterceptionScope scope;
    EXPECT_THAT(at::sgn(x), EqualsBitwise(-at::ones({3})));
    EXPECT_TRUE(at::sgn(x).requires_grad());
  }
  EXPECT_EQ(seen, 2);
  EXPECT_THAT(factory_calls, ::testing::Contains("aten::sgn").Times(2));
}

TEST(Interception, VisitsEachOperatorOnceByTheNameThatRegistersIt) {
  std::set<std::string> names;
  for_each_aten_operator([&](const c10::OperatorHandle& op, const char* name) {
    EXPECT_TRUE(names.insert(name).second) << name;
    const c10::OperatorName& full = op.operator_name();
    EXPECT_EQ(full.name + (full.overload_name.empty() ? "" : "." + full.overload_name),
              "aten::" + std::string(name));
  });
  for (const char* name : {"sgn", "add_.Scalar", "empty.memory_format"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

}  // namespace
}  // namespace gpipe::internal
