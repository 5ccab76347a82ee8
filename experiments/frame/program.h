// run_program: the frame of every experiment, from the command line to the exit code.
#ifndef GPIPE_EXPERIMENTS_FRAME_PROGRAM_H_
#define GPIPE_EXPERIMENTS_FRAME_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "command/interrupt.h"
#include "command/progress.h"
#include "experiments/frame/report.h"

namespace gpipe::experiments {

// What a variant needs while it runs.
struct RunContext {
  std::ostream* out = nullptr;       // lines for people
  std::ostream* progress = nullptr;  // the progress bar
  command::ProgressOptions progress_options;
  std::function<bool()> interrupted;  // Ctrl-C: to be checked after each step
  int64_t round = 1;                  // the variant's round (Variant::rounds), from 1
  int64_t rounds = 1;

  bool is_interrupted() const { return interrupted && interrupted(); }
  // Throws command::Interrupted if it is interrupted.
  void check() const {
    if (is_interrupted()) throw command::Interrupted();
  }
};

// Runs a variant and fills its outcome as results come. If this throws, the figures so far are
// shown, labeled failed. A variant that has no figure until it is done throws command::Interrupted
// after Ctrl-C, and is labeled not run. A second round continues the outcome of the first.
using RunVariant = std::function<void(Outcome& outcome, const RunContext& context)>;

// One row of the table.
struct Variant {
  std::string name;
  // How its figures are obtained: kMeasured, kPlanned or kSimulated.
  Origin way = Origin::kMeasured;
  // Why it cannot run; empty if it can.
  std::string refusal;
  RunVariant run;
  // How often it runs. Measured variants that run several times do so in turns, each once before
  // any runs again, so that what disturbs the machine for a while disturbs all of them.
  int64_t rounds = 1;
};

struct ExperimentRun {
  std::string name;     // the experiment's name, which its folder has
  std::string edition;  // the table's edition, if there are several
  PublishedTable table;
  std::vector<Variant> variants;  // the selected ones
  std::vector<std::string> remarks;
  std::string json;          // file for the table; empty: none
  std::string when_stopped;  // printed after Ctrl-C, such as how to continue
};

// Reads the command line (`usage` begins the answer to --help), calls `prepare` for the experiment,
// runs its variants one after another and prints the table, whose rows keep the experiment's order.
// Planned and simulated variants run first, since they take seconds. Measured ones that have
// several rounds run in turns. A variant that fails is labeled failed ("out of memory" if that was
// the reason) and is not run again; the others still run. After Ctrl-C the running variant is
// stopped and the others are not started. The JSON is written after each variant, so that a later
// crash loses nothing.
//
// `prepare` throws std::invalid_argument or c10::ValueError for wrong usage, so every check that is
// possible before the first step belongs there.
//
// Exit codes: 0; 1 for an error while running, or if the table cannot be written; 2 for wrong
// usage; 130 after Ctrl-C, SIGTERM or SIGHUP.
int run_program(int argc, const char* const* argv, const std::string& usage,
                const std::function<ExperimentRun()>& prepare);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_PROGRAM_H_
