// Starts the processes of one run on this machine:
// `bazel run //gpipe/distributed:launch -- --processes=4 -- PROGRAM ARGUMENTS`.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "absl/flags/flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/made_folders.h"
#include "command/run_main.h"
#include "gpipe/distributed/launcher/child_process.h"
#include "gpipe/distributed/launcher/launch.h"

ABSL_FLAG(std::optional<int64_t>, processes, std::nullopt,
          "Number of processes, 1 to 1024. Default: none, it must be given.");
ABSL_FLAG(std::string, log_dir, "",
          "Also write each process's output to files in this folder: rank_0.out, rank_0.err and "
          "so on.");
ABSL_FLAG(
    double, grace, 30,
    "Seconds that the others have to end by themselves after one process has failed; then they get "
    "SIGTERM. At most 5 if that one ended with exit code 2, wrong usage.");
ABSL_FLAG(double, kill_after, 5,
          "Seconds that a process has to end after SIGTERM; then it is killed.");
ABSL_FLAG(bool, stdin, false, "Whether rank 0 reads the standard input. The others read nothing.");
ABSL_FLAG(bool, bind_cores, false,
          "Whether each process is bound to its share of the cores that may be used here.");
ABSL_FLAG(int64_t, restarts, 0,
          "How many processes that a signal ended may be started again, over the whole run, 0 to "
          "1000000. Only for programs that go on after that (gpipe::meet); any other run fails.");
ABSL_FLAG(int64_t, spares, 0,
          "How many more processes are started that wait for the death of another one, 0 to 1024. "
          "Only for programs that go on after that (gpipe::meet).");

namespace {

using gpipe::distributed::LaunchOptions;

constexpr int64_t kMostProcesses = 1024;
constexpr int64_t kMostRestarts = 1'000'000;

const char* const kUsage =
    "Starts several processes of one program on this machine, as ranks 0, 1, ...: shows what they "
    "write, line by line, and how each of them ends.\n"
    "  launch --processes=4 -- PROGRAM ARGUMENTS\n"
    "They find RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in "
    "their "
    "environment, as under torchrun. Exit code: 0 if each ended with 0, else that of the first "
    "that "
    "did not (128 and the number of the signal that ended it). Deaths after which the others went "
    "on (gpipe::meet) do not count.";

std::chrono::milliseconds duration(const std::string& flag, double seconds) {
  constexpr double kDay = 86400;
  if (seconds >= 0 && seconds <= kDay) {
    return std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  throw std::invalid_argument("--" + flag + ": give seconds from 0 to 86400");
}

LaunchOptions read_options(char** command, char** end) {
  LaunchOptions options;
  const std::optional<int64_t> processes = absl::GetFlag(FLAGS_processes);
  if (!processes) {
    throw std::invalid_argument("--processes=N is missing: give the number of processes to start");
  }
  options.processes = gpipe::command::in_range("processes", *processes, 1, kMostProcesses);
  options.grace = duration("grace", absl::GetFlag(FLAGS_grace));
  options.kill_after = duration("kill_after", absl::GetFlag(FLAGS_kill_after));
  options.input = absl::GetFlag(FLAGS_stdin);
  options.bind_cores = absl::GetFlag(FLAGS_bind_cores);
  options.restarts =
      gpipe::command::in_range("restarts", absl::GetFlag(FLAGS_restarts), 0, kMostRestarts);
  options.spares =
      gpipe::command::in_range("spares", absl::GetFlag(FLAGS_spares), 0, kMostProcesses);
  if (command == end) {
    throw std::invalid_argument(
        "the program is missing: launch --processes=4 -- PROGRAM ARGUMENTS");
  }
  options.command.assign(command, end);
  // `bazel run` starts this program in another folder than the user's, and names the user's in this
  // variable.
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory != nullptr) options.directory = directory;
  options.log_directory = gpipe::command::user_path(absl::GetFlag(FLAGS_log_dir));
  if (!options.log_directory.empty()) {
    gpipe::command::check_writable_folder("--log_dir", options.log_directory);
    gpipe::command::tell_made_folders();
  }
  return options;
}

}  // namespace

// run_main() and not run_command() (command/run.h): the launcher needs no LibTorch, whose libraries
// take half a second to load, and its processes must have the user's environment, without
// OMP_WAIT_POLICY.
int main(int argc, char** argv) {
  char** const end = argv + argc;
  char** const dashes = std::find(argv + 1, end, std::string("--"));
  bool has_read_flags = false;
  gpipe::command::MainOptions options;
  options.code = [](const std::exception& error) {
    const auto* start = dynamic_cast<const gpipe::distributed::StartError*>(&error);
    return start != nullptr ? start->exit_code() : gpipe::command::exit_code_of(error);
  };
  options.says = [&](const std::exception& mistake) {
    const bool is_of_program = !has_read_flags && dashes == end;
    return std::string(mistake.what()) +
           (is_of_program ? "; the program and its arguments come after a --" : "");
  };
  return gpipe::command::run_main(
      static_cast<int>(dashes - argv), argv, kUsage,
      [&]() -> gpipe::command::Work {
        has_read_flags = true;
        const int code =
            gpipe::distributed::launch(read_options(dashes == end ? end : dashes + 1, end));
        return [code] { return code; };
      },
      options);
}
