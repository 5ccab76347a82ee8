#include "text/counted.h"

#include <gtest/gtest.h>

namespace gpipe::text {
namespace {

TEST(Counted, OneHasTheSingular) {
  EXPECT_EQ(counted(1, "layer"), "1 layer");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
}

TEST(Counted, AllOthersHaveThePlural) {
  EXPECT_EQ(counted(0, "layer"), "0 layers");
  EXPECT_EQ(counted(12, "layer"), "12 layers");
  EXPECT_EQ(counted(-1, "layer"), "-1 layers");
  EXPECT_EQ(counted(2, "batch", "batches"), "2 batches");
  EXPECT_EQ(counted(int64_t{1} << 40, "row"), "1099511627776 rows");
}

}  // namespace
}  // namespace gpipe::text
