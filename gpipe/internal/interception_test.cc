#include "gpipe/internal/interception.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sgn.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <set>
#include <string>
#include <thread>

#include "gpipe/internal/random_streams.h"
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

// In addition to those of random_streams.cc.
const Interceptor interceptor([](torch::Library& aten) { aten.impl("sgn", &counted_sgn); });

TEST(Interception, SeesOperatorsOfItsThreadInsideTheScopeAlone) {
  const at::Tensor x = -at::ones({3}).requires_grad_();
  seen = 0;
  at::sgn(x);
  EXPECT_EQ(seen, 0);
  {
    const InterceptionScope scope;
    EXPECT_THAT(at::sgn(x), EqualsBitwise(-at::ones({3})));
    EXPECT_TRUE(at::sgn(x).requires_grad()) << "it goes its usual way";
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

TEST(Interception, AllInterceptorsAreActiveAtOnce) {
  const InterceptionScope scope;
  RandomStreams streams;
  const RandomStreamsScope drawing(&streams);
  seen = 0;
  streams.enter(1, 2, 3);
  const at::Tensor first = at::sgn(at::rand({4}) - 0.5);
  streams.enter(1, 2, 3);
  EXPECT_THAT(at::sgn(at::rand({4}) - 0.5), EqualsBitwise(first));
  EXPECT_EQ(seen, 2);
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
