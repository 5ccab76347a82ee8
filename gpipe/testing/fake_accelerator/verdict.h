// Verdict: fails a test on the fake accelerator for a race, a failed kernel, or a host thread that
// waits where none should.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_VERDICT_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_VERDICT_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpipe/testing/fake_accelerator/runtime.h"

namespace gpipe::testing::fake {

// Waits for all devices, and returns what has gone wrong on them since the last call, a line for
// each error. Afterwards the devices work again.
std::vector<std::string> complaints(Runtime& runtime);

// Adds a failure for each complaint to the test in which it arose. A complaint that arose between
// two tests (in SetUpTestSuite, say) fails the next test. Only the thread that runs a test may
// wait.
//
// Requirements: `runtime` outlives it.
class Verdict : public ::testing::EmptyTestEventListener {
 public:
  explicit Verdict(Runtime& runtime) : runtime_(runtime) {}
  void OnTestStart(const ::testing::TestInfo& test) override;
  void OnTestEnd(const ::testing::TestInfo& test) override;

 private:
  Runtime& runtime_;
};

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_VERDICT_H_
