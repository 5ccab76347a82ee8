#include "gpipe/internal/threads/device_context.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_warnings.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct DeviceContext : testing::DeviceTest {};

TEST_F(DeviceContext, AThreadWhoseFirstOperatorIsAMatrixProductFindsIt) {
  const c10::Device device = testing::device();
  const at::Tensor a = at::ones({4, 4}).to(device), product = at::ones({4, 4}).to(device);
  const auto warnings_of_a_thread = [&](bool enter) {
    std::vector<std::string> texts;
    std::thread([&] {
      const testing::TorchWarnings warnings;
      const c10::NoGradGuard no_grad;
      if (enter) enter_device(device);
      at::mm_out(const_cast<at::Tensor&>(product), a, a);
      texts = warnings.texts;
    }).join();
    return texts;
  };
  EXPECT_THAT(warnings_of_a_thread(true), IsEmpty());
  EXPECT_EQ(testing::on_host(product)[0][0].item<float>(), 4);
  if (!device.is_cuda()) return;
  // LibTorch warns once per process, so this check comes last. If LibTorch no longer warns,
  // enter_device() can be removed.
  EXPECT_THAT(warnings_of_a_thread(false), ElementsAre(HasSubstr("no current CUDA context")));
}

}  // namespace
}  // namespace gpipe::internal
