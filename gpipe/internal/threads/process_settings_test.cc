#include "gpipe/internal/threads/process_settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;

TEST(ProcessSettings, TheFirstOneThatChangesIsNamed) {
  at::Context& context = at::globalContext();
  struct Case {
    std::function<void()> change, undo;
    const char* name;
  };
  const std::vector<Case> cases = {
      {[] { c10::set_default_dtype(caffe2::TypeMeta::Make<double>()); },
       [] { c10::set_default_dtype(caffe2::TypeMeta::Make<float>()); }, "set_default_dtype"},
      {[&] { context.setDeterministicAlgorithms(true, false); },
       [&] { context.setDeterministicAlgorithms(false, false); }, "setDeterministicAlgorithms"},
      {[&] { context.setUserEnabledMkldnn(false); }, [&] { context.setUserEnabledMkldnn(true); },
       "setUserEnabledMkldnn"},
      {[&] { context.setFloat32MatmulPrecision("medium"); },
       [&] { context.setFloat32MatmulPrecision("highest"); }, "setFloat32MatmulPrecision"},
      {[&] { context.setSDPUseFlash(false); }, [&] { context.setSDPUseFlash(true); }, "setSDPUse"},
  };
  context.setFloat32MatmulPrecision("highest");
  const std::vector<ProcessSetting> before = process_settings();
  for (const Case& one : cases) {
    EXPECT_EQ(first_change(before, process_settings(), false), nullptr) << one.name;
    one.change();
    const char* const changed = first_change(before, process_settings(), false);
    one.undo();
    ASSERT_NE(changed, nullptr) << one.name;
    EXPECT_THAT(std::string(changed), HasSubstr(one.name));
  }
  EXPECT_EQ(first_change(before, process_settings(), false), nullptr);
}

TEST(ProcessSettings, ThoseOfCudaCountThereOnly) {
  at::Context& context = at::globalContext();
  struct Case {
    std::function<void(bool)> set;
    bool was;
    const char* name;
  };
  const std::vector<Case> cases = {
      {[&](bool value) { context.setBenchmarkCuDNN(value); }, context.benchmarkCuDNN(),
       "setBenchmarkCuDNN()"},
      {[&](bool value) { context.setSDPUseMemEfficient(value); },
       context.userEnabledMemEfficientSDP(), "setSDPUse"},
      {[&](bool value) { context.setSDPUseCuDNN(value); }, context.userEnabledCuDNNSDP(),
       "setSDPUse"},
      {[&](bool value) {
         context.setFloat32Precision(
             at::Float32Backend::CUDA, at::Float32Op::MATMUL,
             value ? at::Float32Precision::TF32 : at::Float32Precision::IEEE);
       },
       false, "setFloat32Precision()"},
  };
  cases.back().set(false);
  const std::vector<ProcessSetting> before = process_settings();
  for (const Case& one : cases) {
    one.set(!one.was);
    const std::vector<ProcessSetting> now = process_settings();
    one.set(one.was);
    EXPECT_EQ(first_change(before, now, false), nullptr) << one.name;
    EXPECT_THAT(first_change(before, now, true), HasSubstr(one.name));
  }
}

// LibTorch changes the order in which kernels of attention are tried by itself. What a program
// changes there is still seen later.
TEST(ProcessSettings, WhatOperatorsSetIsNotAChange) {
  at::Context& context = at::globalContext();
  const auto order = context.sDPPriorityOrder();
  const auto set = [&](bool reversed) {
    std::vector<int64_t> numbers;
    for (const at::SDPBackend backend : order) numbers.push_back(static_cast<int64_t>(backend));
    if (reversed) std::reverse(numbers.begin(), numbers.end());
    context.setSDPPriorityOrder(numbers);
  };
  std::vector<ProcessSetting> settings = process_settings();
  context.setSDPUseMath(false);
  set(/*reversed=*/true);
  EXPECT_THAT(first_change(settings, process_settings(), true), HasSubstr("setSDPUse"));
  take_what_operators_set(settings);
  EXPECT_THAT(first_change(settings, process_settings(), true), HasSubstr("setSDPUse"));
  context.setSDPUseMath(true);
  EXPECT_EQ(first_change(settings, process_settings(), true), nullptr);
  set(/*reversed=*/false);
  EXPECT_THAT(first_change(settings, process_settings(), true), HasSubstr("setSDPUse"));
}

}  // namespace
}  // namespace gpipe::internal
