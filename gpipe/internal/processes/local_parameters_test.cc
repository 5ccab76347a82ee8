#include "gpipe/internal/processes/local_parameters.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

TEST(LocalParameters, AreAllInWhatHasAllOfOnePipeline) {
  const at::Tensor a = at::ones(2), b = at::ones(2), c = at::ones(2);
  EXPECT_FALSE(LocalParameters::are_all_in({a, b}));
  std::optional<LocalParameters> one(std::in_place);
  LocalParameters another;
  EXPECT_FALSE(LocalParameters::are_all_in({a, b})) << "no pipeline has registered parameters yet";
  one->know({a, b});
  another.know({c});
  EXPECT_TRUE(LocalParameters::are_all_in({b, a}));
  EXPECT_TRUE(LocalParameters::are_all_in({c, a}));
  EXPECT_FALSE(LocalParameters::are_all_in({a}));
  one->know({a});
  EXPECT_TRUE(LocalParameters::are_all_in({a}));
  one.reset();
  EXPECT_FALSE(LocalParameters::are_all_in({a, b}));
}

TEST(LocalParameters, DoNotTakeANewTensorForOneThatIsGone) {
  LocalParameters known;
  std::vector<at::Tensor> gone{at::ones(2)};
  known.know(gone);
  gone.clear();
  for (int k = 0; k < 100; ++k) EXPECT_FALSE(LocalParameters::are_all_in({at::ones(2)})) << k;
}

}  // namespace
}  // namespace gpipe::internal
