// RankLines, OutputQueue: merge the outputs of several processes into one, line by line.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_RANK_LINES_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_RANK_LINES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpipe::distributed {

// Splits the output of one process into whole lines, each with "[rank] " before it. Bytes other
// than newlines are not interpreted.
//
// Thread-safety: none.
class RankLines {
 public:
  // The length in bytes. Longer lines are cut, so that no process can use up the launcher's memory.
  static constexpr std::size_t kLongestLine = 1 << 20;

  explicit RankLines(int64_t rank) : prefix_("[" + std::to_string(rank) + "] ") {}

  // The lines that `bytes` complete.
  std::string add(std::string_view bytes);
  // The last line, with a newline, if the process has not ended it with one; otherwise empty.
  std::string finish();

 private:
  std::string prefix_;
  std::string partial_;
};

// The bytes that are still to be written to a file descriptor. It never waits for the descriptor: a
// paused terminal (Ctrl-S) or a slow reader must not keep Ctrl-C from working. If the reader has
// gone away (head), that is not an error. All later bytes are dropped, as they are after an error
// (a full disk).
//
// Requirements: SIGPIPE is ignored.
//
// Thread-safety: none.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  void push(std::string_view text);
  // Writes as many bytes as it can without waiting.
  void write_some();

  int fd() const { return fd_; }
  bool empty() const { return pending_.empty(); }
  // The errno that explains lost output. 0 if none was lost, or if it was lost only because its
  // reader went away.
  int error() const { return error_; }
  // Whether the processes that write to it should wait.
  bool is_full() const { return pending_.size() >= kMostPending; }

 private:
  static constexpr std::size_t kMostPending = 1 << 20;

  int fd_;
  bool gone_ = false;
  int error_ = 0;
  std::string pending_;
};

// Whether both descriptors refer to the same file, pipe or terminal, so that a line on one could
// interrupt a line on the other.
bool is_same_file(int a, int b);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_RANK_LINES_H_
