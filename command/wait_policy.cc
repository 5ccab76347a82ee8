#include "command/wait_policy.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace gpipe::command {
namespace {

// The number of spins that take about 25 microseconds, the time to wake a thread.
constexpr char kSpins[] = "1000";

std::string contents(const char* file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Whether a debugger traces this process. Under a debugger the program is not started again,
// because the debugger would lose the program that it has read.
bool is_traced() {
  const std::string status = contents("/proc/self/status");
  const std::string key = "\nTracerPid:\t";
  const std::size_t place = status.find(key);
  return place != std::string::npos && status.compare(place + key.size(), 2, "0\n") != 0;
}

bool are_of_this_process(int argc, const char* const* argv) {
  std::string text;
  for (int i = 0; i < argc; ++i) text.append(argv[i]).push_back('\0');
  return !text.empty() && text == contents("/proc/self/cmdline");
}

// The path of this process's program; empty if it is not known. It is not "/proc/self/exe", because
// process lists would call the program "exe".
std::string program() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == sizeof path) return "";
  return {path, static_cast<std::size_t>(length)};
}

}  // namespace

void start_with_sleeping_threads(int argc, const char* const* argv) {
  constexpr char kPolicy[] = "OMP_WAIT_POLICY";
  constexpr char kCount[] = "GOMP_SPINCOUNT";
  if (std::getenv(kPolicy) != nullptr || std::getenv(kCount) != nullptr) return;
  if (is_traced() || !are_of_this_process(argc, argv)) return;
  const std::string path = program();
  if (path.empty()) return;
  if (setenv(kPolicy, "passive", 0) == 0 && setenv(kCount, kSpins, 0) == 0) {
    execv(path.c_str(), const_cast<char* const*>(argv));
  }
  // execv() failed, for example because the program was removed or replaced since it started. So
  // the process goes on without the variables.
  unsetenv(kPolicy);
  unsetenv(kCount);
}

}  // namespace gpipe::command
