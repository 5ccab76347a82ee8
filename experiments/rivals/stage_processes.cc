#include "experiments/rivals/stage_processes.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "gpipe/distributed/launcher/child_process.h"
#include "gpipe/distributed/meet/addresses.h"

namespace gpipe::experiments {
namespace {

using Json = nlohmann::ordered_json;

// This variable is set in the environment of the processes that were started, so that they start no
// others.
constexpr char kMark[] = "GPIPE_RIVALS_STAGE_PROCESS";

// A process that has not ended after this time does not end by itself.
constexpr std::chrono::seconds kPatience{2};

void set_environment(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
}

void set_rank(int64_t rank) {
  for (const char* name : {"RANK", "LOCAL_RANK"}) set_environment(name, std::to_string(rank));
}

// Both ends of a pipe. Processes that are started later do not inherit them.
struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "a pipe to another stage's process");
    }
  }
  ~Pipe() {
    for (const int end : ends) {
      if (end >= 0) close(end);
    }
  }
  std::FILE* open(int end, const char* mode) { return fdopen(std::exchange(ends[end], -1), mode); }

  int ends[2] = {-1, -1};
};

// Waits for a process and returns its status. A process that does not end in time is killed.
int end_of(pid_t pid) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= end) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return status;
}

}  // namespace

// The constructor delegates. So if a process does not start, the destructor ends the processes that
// run already.
StageProcesses::StageProcesses(const std::vector<std::string>& command, int64_t stages)
    : StageProcesses() {
  if (stages == 1 || std::getenv(kMark) != nullptr) return;
  port_.emplace();
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    set_environment(name, std::to_string(stages));
  }
  set_environment("MASTER_ADDR",
                  distributed::loopback_address(distributed::interfaces_of_this_machine()));
  set_environment("MASTER_PORT", std::to_string(port_->number()));
  for (int64_t rank = 1; rank < stages; ++rank) start(command, rank);
  set_rank(0);
}

StageProcesses::~StageProcesses() {
  for (const Process& process : processes_) std::fclose(process.input);
  for (const Process& process : processes_) {
    if (process.pid >= 0) end_of(process.pid);
    std::fclose(process.output);
  }
}

void StageProcesses::start(const std::vector<std::string>& command, int64_t rank) {
  Pipe input, output;
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.ends[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.ends[1], STDOUT_FILENO);
  Process process;
  process.rank = rank;
  set_rank(rank);
  set_environment(kMark, "1");
  const int error = posix_spawnp(&process.pid, arguments[0], &actions, /*attrp=*/nullptr,
                                 arguments.data(), environ);
  unsetenv(kMark);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw std::system_error(error, std::generic_category(),
                            "the process of stage " + std::to_string(rank) + ", " + command[0]);
  }
  process.input = input.open(1, "w");
  process.output = output.open(0, "r");
  processes_.push_back(process);
}

void StageProcesses::tell(const std::string& line) {
  for (const Process& process : processes_) {
    std::fprintf(process.input, "%s\n", line.c_str());
    std::fflush(process.input);
  }
}

Json StageProcesses::add_answers(Json own, const std::vector<std::string>& keys) {
  for (Process& process : processes_) {
    const Json answer = Json::parse(read_answer(process));
    for (const std::string& key : keys) {
      if (!own.contains(key)) continue;
      if (own[key].is_number_integer()) {
        own[key] = own[key].get<int64_t>() + answer.at(key).get<int64_t>();
      } else {
        own[key] = own[key].get<double>() + answer.at(key).get<double>();
      }
    }
  }
  return own;
}

std::string StageProcesses::read_answer(Process& process) {
  std::string line;
  for (int c = 0; (c = std::fgetc(process.output)) != EOF;) {
    if (c == '\n') return line;
    line += static_cast<char>(c);
  }
  const int status = end_of(std::exchange(process.pid, -1));
  throw std::runtime_error("rank " + std::to_string(process.rank) + " " +
                           distributed::describe_end(status));
}

}  // namespace gpipe::experiments
