// gpipe_cc_test(fake = True) links this file into x_fake_test; the test itself does not refer to
// it.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gpipe/internal/threads/stage_work.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/gate.h"
#include "gpipe/testing/fake_accelerator/verdict.h"

namespace gpipe::testing::fake {
namespace {

// Keeps the stream busy for 50 ms, which is longer than a test's own work on the host between two
// calls.
void slow_work(c10::Device device) {
  runtime().launch(current_stream(device), {"slow work",
                                            Task::Kind::kKernel,
                                            {},
                                            nullptr,
                                            /*longer=*/std::chrono::milliseconds(50)});
}

std::shared_ptr<void> hold_stream(c10::Device device) {
  auto gate = std::make_shared<Gate>();
  runtime().launch(current_stream(device), gate->task());
  return gate;
}

void allow_host_waits(bool allowed) {
  runtime().exchange_host_waits(allowed ? HostWaits::kAllowed : HostWaits::kOfTheTest);
}

[[maybe_unused]] const bool registered = [] {
  register_device_kind("fake", {c10::kPrivateUse1, [] { return int64_t{kDevices}; }, &slow_work,
                                &hold_stream, &allow_host_waits});
  runtime().set_place([] {
    const internal::StageWork* const work = internal::StageWork::current();
    return work == nullptr ? std::string() : work->place();
  });
  observe_out_of_memory([](c10::Device device, size_t asked, size_t free, size_t total) {
    internal::report_out_of_memory({device, static_cast<int64_t>(asked), static_cast<int64_t>(free),
                                    static_cast<int64_t>(total)});
  });
  ::testing::UnitTest::GetInstance()->listeners().Append(
      new Verdict(runtime()));  // GoogleTest owns it
  return true;
}();

}  // namespace
}  // namespace gpipe::testing::fake
