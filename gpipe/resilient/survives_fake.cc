// Makes examples/guide:survives compute on the fake accelerator, with links between the devices,
// and say at its end how often this process has sent over a link. What the accelerator has to
// complain of (races, failed kernels, unexpected waits) makes it end with 70.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/verdict.h"
#include "gpipe/testing/processes/socket_link.h"

namespace gpipe::testing::fake {
namespace {

void report() {
  std::fprintf(stderr, "fake devices: %lld messages over links\n",
               static_cast<long long>(distributed::sent_by_sockets()));
  bool is_well = true;
  for (const std::string& complaint : complaints(runtime())) {
    std::fprintf(stderr, "fake devices: %s\n", complaint.c_str());
    is_well = false;
  }
  if (!is_well) _exit(70);
}

[[maybe_unused]] const bool prepared = [] {
  setenv("SURVIVES_DEVICE", "fake", /*overwrite=*/0);
  setenv("GPIPE_DEVICE_LINKS", "sockets", /*overwrite=*/0);
  runtime().set_test_thread(std::this_thread::get_id());
  return std::atexit(&report) == 0;
}();

}  // namespace
}  // namespace gpipe::testing::fake
