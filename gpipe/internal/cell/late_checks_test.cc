// LateChecks on the fake accelerator, with an answer that arrives late.
#include "gpipe/internal/cell/late_checks.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::fake::runtime;

class LateChecksTest : public ::testing::Test {
 protected:
  static at::Tensor answer(bool differs) {
    return at::full({}, differs, at::TensorOptions(at::kBool).device(testing::device(1)));
  }

  Transfers transfers;
  LateChecks checks;
};

TEST_F(LateChecksTest, AYesIsToldOnceItIsThereAndOnlyOnce) {
  const testing::Watchdog watchdog(std::chrono::minutes(2),
                                   "looking for an answer that has not arrived");
  const at::Tensor yes = answer(true);
  std::shared_ptr<void> busy = testing::hold_stream(testing::device(1));
  checks.add(3, yes, transfers);
  EXPECT_NO_THROW(checks.look()) << "look() does not wait for the answer";
  busy.reset();
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
