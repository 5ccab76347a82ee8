// Tests that GPipe's targets are built against this workspace's own GoogleTest and glog: their
// markers are visible here, although this package depends on GPipe's targets only.

#include <gtest/gtest.h>

TEST(Override, OwnGoogleTestWins) {
#ifdef OWN_GOOGLETEST
  SUCCEED();
#else
  FAIL() << "GPipe brought its own GoogleTest";
#endif
}

TEST(Override, OwnGlogWins) {
#ifdef OWN_GLOG
  SUCCEED();
#else
  FAIL() << "GPipe brought its own glog";
#endif
}
