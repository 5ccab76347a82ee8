// RankLines, OutputQueue: the outputs of several processes on one, line by line.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_RANK_LINES_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_RANK_LINES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpipe::distributed {

// Makes whole lines of what one process writes, each with "[rank] " before it. Bytes other than
// newlines are not looked at.
//
// Thread-safety: none.
class RankLines {
 public:
  // A longer line is cut into several: no process may use up the launcher's memory.
  static constexpr std::size_t kLongestLine = 1 << 20;

  explicit RankLines(int64_t rank) : prefix_("[" + std::to_string(rank) + "] ") {}

  // The lines that `bytes` complete.
  std::string add(std::string_view bytes);
  // The last line, if it has no newline: it gets one.
  std::string finish();

 private:
  std::string prefix_;
  std::string partial_;
};

// What is still to be written to a file descriptor, which is never waited for: a terminal that is
// held (Ctrl-S) or a slow reader must not keep Ctrl-C from working. A reader that has gone away
// (head) is no error: from then on everything is dropped, as after an error (a full disk).
//
// Requirements: SIGPIPE is ignored.
//
// Thread-safety: none.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  void push(std::string_view text);
  // Writes as much as goes without waiting.
  void write_some();

  int fd() const { return fd_; }
  bool empty() const { return pending_.empty(); }
  // Why output was lost, as errno has it; 0 if none was, or if nobody wanted to read it.
  int error() const { return error_; }
  // Whether those who write to it should wait.
  bool is_full() const { return pending_.size() >= kMostPending; }

 private:
  static constexpr std::size_t kMostPending = 1 << 20;

  int fd_;
  bool gone_ = false;
  int error_ = 0;
  std::string pending_;
};

// Whether both lead to the same file, pipe or terminal, so that lines on them could break each
// other.
bool is_same_file(int a, int b);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_RANK_LINES_H_
