#include "gpipe/distributed/control/failure.h"

#include <gtest/gtest.h>

#include <sstream>

namespace gpipe::distributed {
namespace {

TEST(DistributedFailure, SaysWhereAndWhy) {
  const Fault exception{FaultKind::kException, 2, "node1", 2, 3, "layer 5 ('relu')", "boom"};
  const Fault death{FaultKind::kDeath, 1, "node2", -1, -1, "", "its connections closed"};
  const Fault left{FaultKind::kLeft, 0, "", -1, -1, "", "early"};
  const Fault silence{FaultKind::kSilence, 3, "", -1, 4, "", "for 30 s"};
  const DistributedFailure failure({exception, death, left, silence});
  EXPECT_STREQ(failure.what(),
               "rank 2 (node1) threw in stage 2, micro-batch 3, layer 5 ('relu'): boom\n"
               "also: rank 1 (node2) is gone: its connections closed\n"
               "also: rank 0 left: early\n"
               "also: rank 3 is silent in micro-batch 4: for 30 s");
  EXPECT_EQ(failure.first(), exception);
  EXPECT_EQ(failure.faults().size(), 4);
  EXPECT_EQ(failure.faults()[3], silence);
  EXPECT_FALSE(death == left);
  std::ostringstream text;
  text << left;
  EXPECT_EQ(text.str(), "rank 0 left: early");
  std::ostringstream all;
  all << failure;
  EXPECT_EQ(all.str(), failure.what());
}

}  // namespace
}  // namespace gpipe::distributed
