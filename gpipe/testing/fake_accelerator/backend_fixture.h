// BackendFixture: the base of tests of the parts above LibTorch's backend.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_BACKEND_FIXTURE_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_BACKEND_FIXTURE_H_

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/verdict.h"

namespace gpipe::testing::fake {

// Base of tests that fail if the fake devices have complaints at the test's end. It is for programs
// without :test_support. That library would take the complaints before the test has looked at them.
class BackendFixture : public ::testing::Test {
 protected:
  BackendFixture() { runtime().set_test_thread(std::this_thread::get_id()); }
  ~BackendFixture() override { EXPECT_THAT(complaints(runtime()), ::testing::IsEmpty()); }
};

// Runs the body with another stream of the device current.
inline void on_stream(StreamId stream, const std::function<void()>& body) {
  const c10::impl::VirtualGuardImpl impl(c10::kPrivateUse1);
  const c10::Stream former = impl.exchangeStream(stream_of(stream));
  body();
  impl.exchangeStream(former);
}

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_BACKEND_FIXTURE_H_
