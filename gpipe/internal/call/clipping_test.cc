// Over two processes, which are two threads here. In one process: gpipe/clip_grad_test.cc.

#include "gpipe/internal/call/clipping.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <future>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/processes_of_two.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;

// Exchanges one message with the other one.
class OneOfTwo final : public testing::ProcessesOfTwo {
 public:
  OneOfTwo(int64_t rank, std::promise<std::string>& own, std::promise<std::string>& other)
      : ProcessesOfTwo(rank), own_(own), other_(other.get_future()) {}

  std::vector<std::string> exchange(const std::string& /*name*/, const std::string& value,
                                    bool /*is_patient*/) override {
    own_.set_value(value);
    std::vector<std::string> values = {value, other_.get()};
    if (rank() == 1) std::swap(values[0], values[1]);
    return values;
  }

 private:
  std::promise<std::string>& own_;
  std::future<std::string> other_;
};

// With the gradients that `has` names.
std::vector<at::Tensor> parameters(const std::vector<bool>& has) {
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < has.size(); ++k) {
    const auto dtype = k == 1 ? torch::kDouble : torch::kFloat;
    result.push_back(torch::zeros({3}, dtype).requires_grad_());
    const double scale = 1.3 + 0.7 * static_cast<double>(k);
    if (has[k]) result.back().mutable_grad() = torch::arange(1, 4).to(dtype) * scale;
  }
  return result;
}

TEST(Clipping, TheGradientsOfTwoProcessesHaveTheNormThatTheyHaveInOne) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::vector<bool>& first :
       {std::vector<bool>{false, true, false, true}, std::vector<bool>{true, true, true, true}}) {
    for (const double norm_type : {0.0, 2.0, 3.5, kInfinity}) {
      SCOPED_TRACE(norm_type);
      const std::vector<bool> all(first.size(), true);
      std::vector<bool> second = first;
      second.flip();
      const std::vector<at::Tensor> want = parameters(all);
      const double norm = clip_gradients(want, 0.5, norm_type, /*error_if_nonfinite=*/false);
      std::promise<std::string> messages[2];
      OneOfTwo processes[] = {{0, messages[0], messages[1]}, {1, messages[1], messages[0]}};
      const std::vector<at::Tensor> have[] = {parameters(first), parameters(second)};
      const auto clip = [&](int rank) {
        return clip_gradients(have[rank], 0.5, norm_type, /*error_if_nonfinite=*/false,
                              &processes[rank], "clip");
      };
      std::future<double> other = std::async(std::launch::async, clip, 1);
      EXPECT_EQ(clip(0), norm);
      EXPECT_EQ(other.get(), norm);
      for (size_t k = 0; k < want.size(); ++k) {
        const at::Tensor& here = have[first[k] ? 0 : 1][k];
        EXPECT_THAT(here.grad(), EqualsBitwise(want[k].grad())) << k;
      }
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
