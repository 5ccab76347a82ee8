#include "experiments/rivals/stage_processes.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
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
  set_rank(rank);
  const char* const path = std::getenv("PATH");
  distributed::ChildOptions child;
  child.program = distributed::find_program(command[0], path == nullptr ? "" : path, "");
  child.arguments = command;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    child.environment.emplace_back(*variable);
  }
  child.environment.push_back(std::string(kMark) + "=1");
  child.input = distributed::ChildInput::kPipe;
  child.shares_error = true;
  const distributed::ChildProcess process = distributed::start_child(child);
  fcntl(process.output, F_SETFL, 0);  // read_answer() waits
  processes_.push_back(
      {rank, process.pid, fdopen(process.input, "w"), fdopen(process.output, "r")});
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
