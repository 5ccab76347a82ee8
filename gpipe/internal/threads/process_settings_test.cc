#include "gpipe/internal/threads/process_settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  const bool was = context.benchmarkCuDNN();
  const std::vector<ProcessSetting> before = process_settings();
  context.setBenchmarkCuDNN(!was);
  const std::vector<ProcessSetting> now = process_settings();
  context.setBenchmarkCuDNN(was);
  EXPECT_EQ(first_change(before, now, false), nullptr);
  EXPECT_THAT(first_change(before, now, true), ::testing::StrEq("setBenchmarkCuDNN()"));
}

}  // namespace
}  // namespace gpipe::internal
