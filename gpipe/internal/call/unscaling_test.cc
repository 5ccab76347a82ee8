#include "gpipe/internal/call/unscaling.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/processes_of_two.h"
#include "gpipe/world.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor with_gradient(const at::Tensor& gradient) {
  at::Tensor parameter = torch::zeros(gradient.sizes(), gradient.scalar_type()).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

TEST(Unscaling, DividesTheGradientsOfAnyType) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor values = torch::arange(-3, 4).to(type);
    const at::Tensor parameter = with_gradient(values * 8);
    const at::Tensor without = torch::zeros({2}).requires_grad_();
    EXPECT_TRUE(unscale_gradients({without, parameter, parameter}, 8))
        << "a tied parameter counts once";
    EXPECT_THAT(parameter.grad(), EqualsBitwise(values));
    EXPECT_FALSE(without.grad().defined());
  }
  EXPECT_TRUE(unscale_gradients({}, 8));
}

TEST(Unscaling, FindsWhatIsNotFinite) {
  for (const double wrong : {kInfinity, -kInfinity, std::nan("")}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      const at::Tensor fine = with_gradient(torch::full({3}, 8.0));
      at::Tensor values = torch::ones({5}, type);
      values[4] = wrong;
      EXPECT_FALSE(unscale_gradients({fine, with_gradient(values)}, 4));
      EXPECT_THAT(fine.grad(), EqualsBitwise(torch::full({3}, 2.0)));
    }
  }
}

TEST(Unscaling, AddsUpTheEntriesOfASparseGradient) {
  const at::Tensor indices = torch::tensor({{1, 1, 3}}, torch::kLong);
  const auto sparse = [&](const std::vector<double>& values) {
    at::Tensor parameter = torch::zeros({5}).requires_grad_();
    parameter.mutable_grad() =
        torch::sparse_coo_tensor(indices, torch::tensor(values, torch::kFloat), {5});
    return parameter;
  };
  const at::Tensor parameter = sparse({8, 16, 4});
  EXPECT_TRUE(unscale_gradients({parameter}, 8));
  EXPECT_THAT(parameter.grad().to_dense(),
              EqualsBitwise(torch::tensor({0.F, 3.F, 0.F, 0.5F, 0.F})));
  // Each value is finite, but the sum of the two values at index 1 is not.
  EXPECT_FALSE(unscale_gradients({sparse({3e38, 3e38, 1})}, 8));
}

TEST(Unscaling, RefusesAFactorThatNoFloat32DividesBy) {
  for (const double factor : {0.0, -1.0, kInfinity, std::nan(""), 1e300, 1e-300}) {
    const at::Tensor parameter = with_gradient(torch::ones({2}));
    EXPECT_THROW(unscale_gradients({parameter}, factor), c10::ValueError) << factor;
    EXPECT_THAT(parameter.grad(), EqualsBitwise(torch::ones({2})));
  }
}

// Two processes. The other one says `other` about the gradients that it has found.
class WithOther final : public testing::ProcessesOfTwo {
 public:
  explicit WithOther(std::string other) : other_(std::move(other)) {}
  std::vector<std::string> exchange(const std::string& /*name*/, const std::string& value,
                                    bool /*is_patient*/) override {
    said = value;
    return {value, other_};
  }
  std::string said;

 private:
  const std::string other_;
};

TEST(Unscaling, AnInfinityOfOneProcessCountsInAll) {
  std::string finite;
  for (const bool here : {true, false}) {
    const auto processes = std::make_shared<WithOther>("");
    const at::Tensor parameter = with_gradient(torch::full({2}, here ? 1.0 : kInfinity));
    EXPECT_FALSE(unscale_gradients({parameter}, 2, World(processes, 0, 2), "unscale"));
    if (here) finite = processes->said;
  }
  for (const bool here : {true, false}) {
    const at::Tensor parameter = with_gradient(torch::full({2}, here ? 1.0 : kInfinity));
    const World world(std::make_shared<WithOther>(finite), 0, 2);
    EXPECT_EQ(unscale_gradients({parameter}, 2, world, "unscale"), here);
  }
}

}  // namespace
}  // namespace gpipe::internal
