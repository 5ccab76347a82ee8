// RankOutputs: what the processes of a launcher print, and what the launcher itself says.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_RANK_OUTPUTS_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_RANK_OUTPUTS_H_

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/distributed/launcher/rank_lines.h"

namespace gpipe::distributed {

// One output of one process: where it comes from, and where it goes.
struct RankStream {
  RankStream(int64_t rank, int from, OutputQueue* to, int log)
      : from(from), to(to), log(log), lines(rank) {}
  ~RankStream() {
    if (from >= 0) close(from);
    if (log >= 0) close(log);
  }
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  // From now on the process behind `descriptor` writes this stream: the rank was started again.
  void go_on(int descriptor) {
    if (from >= 0) close(from);
    from = descriptor;
    to->push(lines.finish());
  }

  int from;  // -1 after its end
  OutputQueue* to;
  int log;  // -1: no log
  bool has_written = false;
  RankLines lines;
};

// Thread-safety: none.
class RankOutputs {
 public:
  // `log_directory`: where each stream is written as it is, too; empty: nowhere.
  explicit RankOutputs(std::string log_directory) : log_directory_(std::move(log_directory)) {}
  RankOutputs(const RankOutputs&) = delete;
  RankOutputs& operator=(const RankOutputs&) = delete;

  OutputQueue* to_output() { return &to_output_; }
  OutputQueue* to_error() { return to_error_; }
  // The log of a stream, whose name ends with `end`; -1 without logs. Throws std::runtime_error if
  // it cannot be written.
  int open_log(int64_t rank, const char* end) const;

  // Returns false if there was nothing to read, for now or because the stream has ended.
  bool read_some(RankStream& stream);
  // Reads what has been written so far. It does not wait for the end of the stream, because a
  // child's child may go on writing.
  void read_rest(RankStream& stream);
  // The same for the last time.
  void drain(RankStream& stream);

  void say(const std::string& text) { to_error_->push("launch: " + text + "\n"); }

  void add_waits(std::vector<pollfd>& waits) const;
  void write_some();
  // Writes the remaining output, however slow its reader is; a signal, which is read from
  // `signals`, ends that. Returns whether output was lost to an error such as a full disk, which it
  // reports. A reader that went away is not an error.
  bool finish(int signals);

 private:
  void write_log(RankStream& stream, std::string_view bytes);
  void write_all(int signals);

  std::string log_directory_;
  OutputQueue to_output_{STDOUT_FILENO};
  OutputQueue own_error_{STDERR_FILENO};
  // If both streams lead to the same terminal, one queue serves both, because the lines of two
  // queues would mix.
  OutputQueue* to_error_ = is_same_file(STDOUT_FILENO, STDERR_FILENO) ? &to_output_ : &own_error_;
  std::array<char, 1 << 16> buffer_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_RANK_OUTPUTS_H_
