#include "gpipe/testing/fake_accelerator/verdict.h"

#include <thread>

namespace gpipe::testing::fake {

std::vector<std::string> complaints(Runtime& runtime) {
  runtime.drain();
  std::vector<std::string> all;
  for (const std::string& race : runtime.take_races()) all.push_back("race: " + race);
  for (const std::string& wait : runtime.take_unexpected_waits()) {
    all.push_back("unexpected wait: " + wait);
  }
  for (int device = 0; device < kDevices; ++device) {
    const std::string error = runtime.reset(device);
    if (!error.empty()) all.push_back("error of device " + std::to_string(device) + ": " + error);
  }
  return all;
}

void Verdict::OnTestStart(const ::testing::TestInfo& /*test*/) {
  runtime_.set_test_thread(std::this_thread::get_id());
}

void Verdict::OnTestEnd(const ::testing::TestInfo& /*test*/) {
  for (const std::string& complaint : complaints(runtime_)) ADD_FAILURE() << complaint;
}

}  // namespace gpipe::testing::fake
