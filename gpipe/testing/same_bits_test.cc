#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace gpipe::testing {
namespace {

void expect_same_bits() {
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS()) << "LibTorch's default";
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
  at::globalContext().setAllowTF32CuDNN(true);
  at::globalContext().setDeterministicCuDNN(false);
}

TEST(SameBits, InTheFirstTest) { expect_same_bits(); }

TEST(SameBits, InTheNextTest) { expect_same_bits(); }

}  // namespace
}  // namespace gpipe::testing
