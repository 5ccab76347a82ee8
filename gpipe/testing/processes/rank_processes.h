// RankProcesses: for tests, processes forked from this one, which send it lines of text.
#ifndef GPIPE_TESTING_PROCESSES_RANK_PROCESSES_H_
#define GPIPE_TESTING_PROCESSES_RANK_PROCESSES_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::distributed {

// Requirements: this process has one thread.
//
// Example:
//   RankProcesses ranks(2, [](int64_t rank, const RankProcesses::Say& say) {
//     say("rank " + std::to_string(rank));
//   });
//   EXPECT_EQ(ranks.next(1), "rank 1");
class RankProcesses {
 public:
  using Say = std::function<void(const std::string& line)>;
  using Main = std::function<void(int64_t rank, const Say& say)>;

  // Each process runs `main` and ends. If `main` throws, the process's last line is "threw: ...".
  RankProcesses(int64_t size, const Main& main);
  // Kills the processes that still run.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // The next line of a rank. It is "ended" if there are no more, and "nothing" if the rank is
  // silent for 30 s.
  std::string next(int64_t rank);
  void send(int64_t rank, int signal) const;
  // Whether the rank ends by itself, with status 0, within 30 s.
  bool ends(int64_t rank) { return how_it_ends(rank).empty(); }
  // Empty if the rank ends by itself with status 0; otherwise how it ends: "by signal 11", "with
  // status 1", "never".
  std::string how_it_ends(int64_t rank);

 private:
  struct Process {
    pid_t pid = -1;
    int lines = -1;
    std::string text;  // text that was read and not yet returned by next()
  };
  std::vector<Process> processes_;
};

// The system's clock, which all processes of a machine share, in microseconds.
int64_t microseconds_now();

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_RANK_PROCESSES_H_
