// The frame of every experiment: from the command line to the exit code.

#ifndef GPIPE_EXPERIMENTS_COMMON_PROGRAM_H_
#define GPIPE_EXPERIMENTS_COMMON_PROGRAM_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "experiments/common/progress.h"
#include "experiments/common/report.h"

namespace gpipe::experiments {

// What a variant needs while it runs.
struct RunContext {
  std::ostream* out = nullptr;       // lines for people
  std::ostream* progress = nullptr;  // the progress bar
  ProgressOptions progress_options;
  std::function<bool()> interrupted;  // Ctrl-C: to be asked after each step
};

// One row of the table.
struct Variant {
  std::string name;
  // Why it cannot be run; empty: it can.
  std::string refusal;
  // Fills the outcome as results come: what is there when it throws is shown, labelled failed.
  std::function<void(Outcome& outcome, const RunContext& context)> run;
};

struct Plan {
  PublishedTable table;
  std::vector<Variant> variants;  // those asked for
  std::vector<std::string> remarks;
  std::string json;          // file for the table; empty: none
  std::string when_stopped;  // told after Ctrl-C, such as how to go on
};

// Exit codes: 0; 1 for an error while running, or if the table cannot be written; 2 for wrong
// usage; 130 after Ctrl-C, SIGTERM or SIGHUP.
//
// Reads the command line (`usage` begins the answer to --help), lets `prepare` find out what is to
// be done, runs the variants one after another and prints the table. A variant that fails is
// labelled so and the rest goes on. With Ctrl-C the one that runs is stopped and the others are not
// begun. The JSON is written after each variant, so that a crash later loses nothing.
// `prepare` throws std::invalid_argument or c10::ValueError for wrong usage, so whatever can be
// found wrong before the first step belongs there.
int run_program(int argc, const char* const* argv, const std::string& usage,
                const std::function<Plan()>& prepare);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_PROGRAM_H_
