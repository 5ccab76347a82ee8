#include "gpipe/testing/torch_seed.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "gpipe/testing/seed.h"

namespace gpipe::testing {
namespace {

// Both tests call this. It expects the same draws in both, whichever runs first.
void expect_seeded() {
  const at::Tensor drawn = at::rand({8});
  at::manual_seed(test_seed());
  EXPECT_TRUE(at::equal(drawn, at::rand({8})));
}

TEST(TorchSeed, SeedsBeforeTheFirstTest) { expect_seeded(); }

TEST(TorchSeed, SeedsBeforeTheNextTest) { expect_seeded(); }

TEST(TorchSeed, StreamsRepeatAndDiffer) {
  manual_seed(1);
  const at::Tensor drawn = at::rand({8});
  manual_seed(2);
  EXPECT_FALSE(at::equal(drawn, at::rand({8})));
  manual_seed(1);
  EXPECT_TRUE(at::equal(drawn, at::rand({8})));
}

}  // namespace
}  // namespace gpipe::testing
