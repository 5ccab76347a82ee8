// Clipping over two processes, which are two threads here. gpipe/clip_grad_test.cc tests one
// process.

#include "gpipe/internal/call/clipping.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/processes_of_two.h"
#include "gpipe/world.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using testing::bitwise_difference;
using testing::EqualsBitwise;
using ::testing::HasSubstr;

// Exchanges one message with the other process.
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

World world_of(int64_t rank, std::promise<std::string>& own, std::promise<std::string>& other) {
  return World(std::make_shared<OneOfTwo>(rank, own, other), rank, 2);
}

// Parameters, one for each entry of `has`. A parameter has a gradient if its entry is true.
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
      const World worlds[] = {world_of(0, messages[0], messages[1]),
                              world_of(1, messages[1], messages[0])};
      const std::vector<at::Tensor> have[] = {parameters(first), parameters(second)};
      const auto clip = [&](int rank) {
        return clip_gradients(have[rank], 0.5, norm_type, /*error_if_nonfinite=*/false,
                              worlds[rank], "clip");
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

// The message that two replicas throw that have these gradients. Empty if they throw nothing.
std::string difference(const std::vector<at::Tensor>& first,
                       const std::vector<at::Tensor>& second) {
  std::promise<std::string> messages[2];
  const World worlds[] = {world_of(0, messages[0], messages[1]).grid(2, 1),
                          world_of(1, messages[1], messages[0]).grid(2, 1)};
  const std::vector<at::Tensor>* const have[] = {&first, &second};
  const auto clip = [&](int rank) -> std::string {
    try {
      clip_gradients(*have[rank], 0.5, 2, /*error_if_nonfinite=*/false, worlds[rank], "clip",
                     {"0.weight", "0.bias", "1.weight"});
    } catch (const FoundByAll& found) {
      try {
        std::rethrow_exception(found.error);
      } catch (const c10::ValueError& error) {
        return error.what_without_backtrace();
      }
    }
    return "";
  };
  std::future<std::string> other = std::async(std::launch::async, clip, 1);
  const std::string text = clip(0);
  EXPECT_EQ(other.get(), text);
  return text;
}

TEST(Clipping, AGradientThatOneReplicaHasChangedAloneIsNamed) {
  const std::vector<bool> all = {true, true, true};
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const bool swapped : {false, true}) {
    const auto differ = [&](const std::vector<at::Tensor>& changed) {
      const std::vector<at::Tensor> as_it_was = parameters(all);
      const std::string text =
          swapped ? difference(as_it_was, changed) : difference(changed, as_it_was);
      const bool is_whole =
          bitwise_difference(as_it_was[0].grad(), parameters(all)[0].grad()).empty();
      EXPECT_EQ(is_whole, !text.empty());
      return text;
    };
    std::vector<at::Tensor> changed = parameters(all);
    EXPECT_EQ(differ(changed), "");
    changed = parameters(all);
    changed[1].mutable_grad()[0] = kNan;
    EXPECT_THAT(differ(changed), AllOf(HasSubstr("'0.bias'"), HasSubstr("the norm nan on rank"),
                                       HasSubstr("by hand")));
    changed = parameters(all);
    changed[2].mutable_grad().mul_(1.1);
    EXPECT_THAT(differ(changed), HasSubstr("'1.weight'"));
    EXPECT_THAT(differ(parameters({false, true, true})),
                AllOf(HasSubstr("'0.weight'"), HasSubstr("is not there on rank")));
    // A NaN that is the same everywhere, as a step leaves it, is accepted.
    std::vector<at::Tensor> nan = parameters(all);
    nan[1].mutable_grad()[0] = kNan;
    std::vector<at::Tensor> same = parameters(all);
    same[1].mutable_grad()[0] = kNan;
    EXPECT_EQ(difference(nan, same), "");
  }
}

}  // namespace
}  // namespace gpipe::internal
