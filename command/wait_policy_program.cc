// wait_policy_program: prints its arguments, name, process id and environment as a command sees
// them, for wait_policy_test.sh.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <thread>

#include "absl/flags/flag.h"
#include "command/interrupt.h"
#include "command/run.h"

ABSL_FLAG(int, code, 0, "Exit code.");
ABSL_FLAG(std::string, word, "", "Said again.");
ABSL_FLAG(bool, wait, false, "Whether to wait for Ctrl-C.");

namespace {

using gpipe::command::InterruptScope;

int work(const std::string& name) {
  const auto value = [](const char* name) -> std::string {
    const char* text = std::getenv(name);
    return text == nullptr ? "none" : text;
  };
  struct sigaction hang_up = {};
  sigaction(SIGHUP, nullptr, &hang_up);
  std::cout << "policy " << value("OMP_WAIT_POLICY") << "\nspins " << value("GOMP_SPINCOUNT")
            << "\nname " << name << "\npid " << getpid() << "\nword " << absl::GetFlag(FLAGS_word)
            << "\nignores a closed terminal " << (hang_up.sa_handler == SIG_IGN) << std::endl;
  if (absl::GetFlag(FLAGS_wait)) {
    const InterruptScope interrupt;
    std::cout << "waiting" << std::endl;
    while (true) {
      interrupt.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return absl::GetFlag(FLAGS_code);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argv[0];
  return gpipe::command::run_command(
      argc, argv, "Says what it knows of itself.",
      [&]() -> std::function<int()> { return [&] { return work(name); }; });
}
