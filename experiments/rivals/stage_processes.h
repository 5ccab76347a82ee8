// StageProcesses: a process for each further stage of a program; all of them follow the first one's
// commands.
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

// The first process starts the program once more for each further stage. All of them find in their
// environment what torchrun would set. The first passes each line of its input on to the others and
// reads their answers; they share its standard error. pipelining_side.py works in the same way.
//
// Requirements: made before this process has other threads.
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
  // `command`: a program and its arguments. No processes are started if there is one stage, or if
  // this process was itself started by a StageProcesses. Throws distributed::StartError if a
  // process cannot be started.
  StageProcesses(const std::vector<std::string>& command, int64_t stages);
  // Closes the input of the other processes. A process that has not ended a moment later is killed.
  ~StageProcesses();
  StageProcesses(const StageProcesses&) = delete;
  StageProcesses& operator=(const StageProcesses&) = delete;

  // Passes the line on to the other processes. A process that has ended is ignored; add_answers()
  // reports it.
  void tell(const std::string& line);
  // `own`, this process's answer, plus the numbers at `keys` in the answer (a line of JSON) of each
  // other process. Keys that `own` lacks are skipped. Throws std::runtime_error, which names the
  // rank, if a process has ended.
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
