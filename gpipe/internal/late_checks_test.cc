// On the fake accelerator, with copies that take their time.
#include "gpipe/internal/late_checks.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "gpipe/internal/transfer.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::fake::Durations;
using testing::fake::runtime;

class LateChecksTest : public ::testing::Test {
 protected:
  void TearDown() override { runtime().set_durations({}); }
  static void copies_take(int64_t milliseconds) {
    Durations durations;
    durations.copy = std::chrono::milliseconds(milliseconds);
    runtime().set_durations(durations);
  }
  static at::Tensor answer(bool differs) {
    return at::full({}, differs, at::TensorOptions(at::kBool).device(testing::device(1)));
  }

  Transfers transfers;
  LateChecks checks;
};

TEST_F(LateChecksTest, AYesIsToldOnceItIsThereAndOnlyOnce) {
  copies_take(100);
  checks.add(3, answer(true), transfers);
  EXPECT_NO_THROW(checks.look()) << "nobody waits for it";
  runtime().drain();
  EXPECT_THAT([&] { checks.look(); },
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("the recompute of stage 3"),
                                              HasSubstr("in a call before this one"))));
  EXPECT_NO_THROW(checks.look());
}

TEST_F(LateChecksTest, ANoIsForgotten) {
  checks.add(0, answer(false), transfers);
  checks.add(1, answer(false), transfers);
  runtime().drain();
  EXPECT_NO_THROW(checks.look());
}

TEST_F(LateChecksTest, OneYesAmongSeveralIsFound) {
  for (const bool differs : {false, true, false}) checks.add(2, answer(differs), transfers);
  runtime().drain();
  EXPECT_THROW(checks.look(), c10::Error);
  EXPECT_NO_THROW(checks.look());
}

}  // namespace
}  // namespace gpipe::internal
