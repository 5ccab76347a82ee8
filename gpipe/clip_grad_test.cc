#include "gpipe/clip_grad.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <limits>
#include <string>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using ClipGrad = testing::DeviceTest;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Where { kHost, kDevices, kHostFirst, kHostLast };

// Parameters on several devices, of which `where` puts all, the first, the last or none on the
// host. The second parameter has no gradient.
std::vector<at::Tensor> parameters(Where where) {
  testing::manual_seed(1);
  std::vector<at::Tensor> result;
  for (int64_t k = 0; k < 4; ++k) {
    const bool host = where == Where::kHost || (where == Where::kHostFirst && k == 0) ||
                      (where == Where::kHostLast && k == 3);
    const c10::Device device = host ? c10::Device(c10::kCPU) : testing::device(k);
    result.push_back(torch::randn({k + 1, 3}).to(device).requires_grad_());
    const at::Tensor gradient = torch::randn({k + 1, 3}) * 5;
    if (k != 1) result.back().mutable_grad() = gradient.to(device);
  }
  return result;
}

TEST_F(ClipGrad, IsThatOfLibTorchOnAnyDevices) {
  for (const double norm_type : {0.0, 1.0, 2.0, 3.5, kInfinity}) {
    for (const double max_norm : {0.0, 0.5, 1e6}) {
      for (const Where where : {Where::kDevices, Where::kHostFirst, Where::kHostLast}) {
        SCOPED_TRACE(std::to_string(norm_type) + " " + std::to_string(max_norm) + " where " +
                     std::to_string(static_cast<int>(where)));
        const std::vector<at::Tensor> want = parameters(Where::kHost);
        const std::vector<at::Tensor> have = parameters(where);
        const double norm = torch::nn::utils::clip_grad_norm_(want, max_norm, norm_type);
        EXPECT_EQ(clip_grad_norm_(have, max_norm, norm_type), norm);
        for (size_t k = 0; k < want.size(); ++k) {
          ASSERT_EQ(want[k].grad().defined(), have[k].grad().defined());
          if (!want[k].grad().defined()) continue;
          EXPECT_EQ(have[k].grad().device(), have[k].device());
          EXPECT_THAT(testing::on_host(have[k].grad()), EqualsBitwise(want[k].grad())) << k;
        }
      }
    }
  }
}

TEST_F(ClipGrad, WithoutGradientsIsNothing) {
  EXPECT_EQ(clip_grad_norm_({}, 1.0), 0);
  EXPECT_EQ(clip_grad_norm_({torch::ones({2}).requires_grad_()}, 1.0), 0);
}

TEST_F(ClipGrad, RefusesWhatMakesNoSense) {
  const std::vector<at::Tensor> some = parameters(Where::kDevices);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT([&] { clip_grad_norm_(some, -1); }, ThrowsMessage<c10::ValueError>(HasSubstr("-1")));
  EXPECT_THROW(clip_grad_norm_(some, nan), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(some, 1, -2), c10::ValueError);
  some[0].mutable_grad().fill_(nan);
  const at::Tensor before = testing::on_host(some[2].grad()).clone();
  EXPECT_THAT(
      [&] { clip_grad_norm_(some, 1, 2, /*error_if_nonfinite=*/true); },
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("nan"), HasSubstr("check_finite(true)"))));
  EXPECT_THAT(testing::on_host(some[2].grad()), EqualsBitwise(before));
}

}  // namespace
}  // namespace gpipe
