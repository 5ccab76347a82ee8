#include "gpipe/internal/call/hashing.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

std::string hash(const Named& named) {
  torch::OrderedDict<std::string, at::Tensor> parameters;
  for (const auto& [name, tensor] : named) parameters.insert(name, tensor);
  return hash_parameters(parameters, nullptr, "");
}

TEST(HashParameters, EveryDifferenceShows) {
  const at::Tensor a = torch::arange(7.0F);
  at::Tensor last = a.clone();
  last[6] = std::nextafter(6.0F, 7.0F);
  at::Tensor first = a.clone();
  first[0] = -0.0F;
  at::Tensor swapped = a.clone();
  swapped[1] = 2;
  swapped[2] = 1;
  const std::vector<Named> all = {{{"w", a}},
                                  {{"w", last}},
                                  {{"w", first}},
                                  {{"w", swapped}},
                                  {{"v", a}},
                                  {{"w", a.to(torch::kDouble)}},
                                  {{"w", a.reshape({7, 1})}},
                                  {{"w", torch::arange(6.0F)}},
                                  {{"w", a}, {"v", a}},
                                  {{"v", a}, {"w", a}},
                                  {{"w", torch::zeros({0})}},
                                  {{"w", torch::zeros({1})}},
                                  {{"w", torch::zeros({2})}},
                                  {}};
  std::set<std::string> hashes;
  for (const Named& named : all) {
    hashes.insert(hash(named));
    EXPECT_EQ(hash(named).size(), 16);
  }
  EXPECT_EQ(hashes.size(), all.size());
}

TEST(HashParameters, StridesDoNotMatterNorDoGradients) {
  const at::Tensor a = torch::arange(6.0F).reshape({2, 3});
  at::Tensor other = a.t().contiguous().t();
  ASSERT_FALSE(other.is_contiguous());
  other.set_requires_grad(true);
  EXPECT_EQ(hash({{"w", a}}), hash({{"w", other}}));
}

}  // namespace
}  // namespace gpipe::internal
