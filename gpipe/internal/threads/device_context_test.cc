#include "gpipe/internal/threads/device_context.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

// Collects what LibTorch warns of on this thread.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;

 private:
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

struct DeviceContext : testing::DeviceTest {};

TEST_F(DeviceContext, AThreadWhoseFirstOperatorIsAMatrixProductFindsIt) {
  const c10::Device device = testing::device();
  const at::Tensor a = at::ones({4, 4}).to(device), product = at::ones({4, 4}).to(device);
  const auto warnings_of_a_thread = [&](bool enter) {
    std::string text;
    std::thread([&] {
      const Warnings warnings;
      const c10::NoGradGuard no_grad;
      if (enter) enter_device(device);
      at::mm_out(const_cast<at::Tensor&>(product), a, a);
      text = warnings.text;
    }).join();
    return text;
  };
  EXPECT_EQ(warnings_of_a_thread(true), "");
  EXPECT_EQ(testing::on_host(product)[0][0].item<float>(), 4);
  if (!device.is_cuda()) return;
  // LibTorch warns once, so this comes last. If it no longer does, enter_device() can go.
  EXPECT_NE(warnings_of_a_thread(false).find("no current CUDA context"), std::string::npos);
}

}  // namespace
}  // namespace gpipe::internal
