// Progress: shows the progress of a long loop.
//
// On a terminal it is one redrawn line with a bar, elsewhere (a log file, CI) a few plain lines.
#ifndef GPIPE_COMMAND_PROGRESS_H_
#define GPIPE_COMMAND_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "command/interrupt.h"

namespace gpipe::command {

struct ProgressOptions {
  // Whether one line is redrawn, instead of several that are written one below the other. Default:
  // false. See is_terminal().
  bool terminal = false;
  // The columns of the terminal. Longer lines are cut. Default: 80.
  int width = 80;
  // The minimum time between two lines. Default: 0.1 s on a terminal, 10 s elsewhere.
  std::chrono::milliseconds interval{-1};
  // The clock; tests replace it. Default: the steady clock.
  std::function<std::chrono::steady_clock::time_point()> now;
};

// Requirements: `out` must outlive the object, which clears its line when destroyed.
//
// Thread-safety: none.
//
// Example:
//   Progress progress(std::cerr, "epoch 1/3", batches, terminal_options(STDERR_FILENO));
//   for (int64_t i = 0; i < batches; ++i) { step(); progress.update(i + 1, "loss 0.31"); }
//   progress.finish();
class Progress {
 public:
  // `total`: the number of steps that are expected. If it is 0 or less, the total is not known, and
  // the number of steps that are done is shown without a share.
  Progress(std::ostream& out, std::string label, int64_t total, ProgressOptions options = {});
  // The progress on stderr of a command that Ctrl-C stops: update() throws Interrupted once
  // `interrupt`, which must outlive the object, was asked for the end.
  Progress(const InterruptScope& interrupt, std::string label, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows that `done` steps of the total are done, with `note` at the end of the line. Cheap until
  // it is time for a new line.
  void update(int64_t done, const std::string& note = "");

  // Ends the progress. On a terminal the line is erased, so that the caller's summary can replace
  // it; elsewhere nothing is written. May be called several times.
  void finish();

 private:
  std::string line(int64_t done, const std::string& note,
                   std::chrono::steady_clock::duration elapsed) const;

  std::ostream& out_;
  std::string label_;
  int64_t total_;
  ProgressOptions options_;
  const InterruptScope* interrupt_ = nullptr;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_;
  bool drawn_ = false;
};

// Whether the file descriptor is a terminal that can redraw a line (TERM is not "dumb").
bool is_terminal(int file_descriptor);

// Options for a stream that ends at `file_descriptor`.
ProgressOptions terminal_options(int file_descriptor);

// Formats seconds for people: "0:07", "3:05", "1:02:03". A negative or absurd value gives "-".
std::string format_duration(double seconds);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_PROGRESS_H_
