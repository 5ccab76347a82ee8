#include "gpipe/internal/graphs/capture_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <functional>
#include <string>

#include "gpipe/testing/device.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

using testing::copy_on;
using testing::device;
using ::testing::HasSubstr;

struct Watch : testing::DeviceTest {
  // Returns the message of check() after `layer` has run on `x`, or "" if check() does not throw.
  std::string said(const std::function<void(const at::Tensor& x)>& layer) const {
    const InterceptionScope interception;
    const CaptureWatch watch(device(), {x});
    try {
      layer(x);
      watch.check();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  }

  const at::Tensor x = copy_on(device(), torch::ones({3}));
};

TEST_F(Watch, WhatTheLayerMakesIsItsOwn) {
  EXPECT_EQ(said([](const at::Tensor& x) {
              const at::Tensor y = x.sin() * 2 + torch::ones_like(x);
              const at::Tensor first = torch::zeros({1}, x.options().dtype(torch::kLong));
              torch::cat({x, y.view({3, 1}).flatten()}).index_select(0, first).sum();
            }),
            "");
}

TEST_F(Watch, ATensorFromElsewhereIsNamedWithItsOperator) {
  const at::Tensor other = copy_on(device(), torch::ones({3}));
  EXPECT_THAT(said([&](const at::Tensor& x) { x + other; }),
              HasSubstr("aten::add takes a tensor that is neither"));
  EXPECT_THAT(said([&](const at::Tensor& x) {
                torch::cat({x, other});
              }),
              HasSubstr("aten::cat takes a tensor that is neither"));
  // The message names the first operator.
  EXPECT_THAT(said([&](const at::Tensor& x) { (x * other) + other; }), HasSubstr("aten::mul"));
}

TEST_F(Watch, NumbersAreNotTensors) {
  EXPECT_EQ(said([](const at::Tensor& x) { (x * 2.5).add(1).pow(2); }), "");
}

TEST_F(Watch, OperatorsThatWaitAreRefused) {
  const testing::HostWaitsAllowed waits;
  EXPECT_THAT(said([](const at::Tensor& x) { x.sum().item<float>(); }),
              HasSubstr("aten::_local_scalar_dense waits for the device"));
  EXPECT_THAT(said([](const at::Tensor& x) { x.nonzero(); }), HasSubstr("aten::nonzero waits"));
  EXPECT_THAT(said([](const at::Tensor& x) { x.index({x > 0}); }), HasSubstr("waits"));
  EXPECT_EQ(x.sum().item<float>(), 3);  // waiting is refused only while a watch lives
}

TEST_F(Watch, CopiesToTheHostAreRefused) {
  if (!testing::for_gpus()) return;  // the CPU has no second device
  const testing::HostWaitsAllowed waits;
  EXPECT_THAT(said([](const at::Tensor& x) { x.cpu(); }), HasSubstr("aten::copy_ goes from"));
  const at::Tensor host = torch::ones({3});
  EXPECT_THAT(said([&](const at::Tensor& x) { x + host.to(device()); }), HasSubstr("from cpu"));
}

TEST_F(Watch, ItIsOfItsThreadAndEndsWithItsScope) {
  EXPECT_FALSE(CaptureWatch::is_recording());
  {
    const CaptureWatch watch;
    EXPECT_TRUE(CaptureWatch::is_recording());
    {
      const CaptureWatch inner(device(), {});
      EXPECT_TRUE(CaptureWatch::is_recording());
    }
    EXPECT_TRUE(CaptureWatch::is_recording());
  }
  EXPECT_FALSE(CaptureWatch::is_recording());
}

}  // namespace
}  // namespace gpipe::internal
