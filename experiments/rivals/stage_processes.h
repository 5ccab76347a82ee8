// StageProcesses: a program's process for each further stage, which does what the first one is told
// to.
#ifndef GPIPE_EXPERIMENTS_RIVALS_STAGE_PROCESSES_H_
#define GPIPE_EXPERIMENTS_RIVALS_STAGE_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/distributed/sockets/master_port.h"

namespace gpipe::experiments {

// The first process starts the program once more for each further stage, and all of them find in
// their environment what torchrun would give them. The others read from it what it is told itself,
// line by line, and give their answers to it; what they say on the standard error goes where its
// own goes. As pipelining_side.py does.
//
// Requirements: made before this process has threads that read the environment.
//
// Example, in all of them:
//   StageProcesses others(command, stages);
//   World world = World::from_environment();
//   for (std::string line; std::getline(std::cin, line);) {
//     others.tell(line);
//     std::cout << others.add_answers(answer(line), {"gradient"}) << std::endl;
//   }
class StageProcesses {
 public:
  // `command`: a program and its arguments. For one stage, and in a process that was started so,
  // nothing is done: there are no others. Throws std::system_error if one cannot be started.
  StageProcesses(const std::vector<std::string>& command, int64_t stages);
  // The others' input ends. One that has not ended a moment later is killed.
  ~StageProcesses();
  StageProcesses(const StageProcesses&) = delete;
  StageProcesses& operator=(const StageProcesses&) = delete;

  // One that has ended is told nothing: the next answer is missing.
  void tell(const std::string& line);
  // This process's answer with each of the others' (a line of JSON) added to it at `keys`, those
  // that `own` has. Throws std::runtime_error, which names the rank, if one has ended.
  nlohmann::ordered_json add_answers(nlohmann::ordered_json own,
                                     const std::vector<std::string>& keys);

 private:
  struct Process {
    int64_t rank = 0;
    pid_t pid = -1;
    std::FILE* input = nullptr;
    std::FILE* output = nullptr;
  };

  StageProcesses() = default;
  void start(const std::vector<std::string>& command, int64_t rank);
  static std::string read_answer(Process& process);

  std::optional<distributed::MasterPort> port_;
  std::vector<Process> processes_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RIVALS_STAGE_PROCESSES_H_
