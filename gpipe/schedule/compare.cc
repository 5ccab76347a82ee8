// Compares the known schedules for one pipeline: `bazel run //gpipe/schedule:compare --
// --workers=8 --micro_batches=32 --forward=1 --input=1.1 --weight=0.7 --transfer=0.1 --memory=16`.

#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "gpipe/schedule/comparison.h"
#include "gpipe/schedule/drawing.h"

ABSL_FLAG(int64_t, workers, 4, "Number of workers.");
ABSL_FLAG(int64_t, micro_batches, 8, "Number of micro-batches.");
ABSL_FLAG(double, forward, 1, "Time of a forward of all layers of a worker, for one micro-batch.");
ABSL_FLAG(double, input, 1, "Time of an input gradient.");
ABSL_FLAG(double, weight, 1, "Time of a weight gradient.");
ABSL_FLAG(double, backward, -1,
          "Time of a whole backward. Default: both gradients together; splitting usually costs "
          "time, so a measured one is less.");
ABSL_FLAG(double, transfer, 0, "Time of a transfer between two workers.");
ABSL_FLAG(double, memory, 0,
          "How many micro-batches of all its layers a worker may hold. Default, 0: any number.");
ABSL_FLAG(double, tolerance, 0.05,
          "By what part the makespan may grow until a slow link has used up its slack.");
ABSL_FLAG(bool, search, true, "Whether to search for better schedules, too.");
ABSL_FLAG(int64_t, budget, 0,
          "Simulated actions of each search. Default, 0: about a second for each.");
ABSL_FLAG(bool, draw, true, "Whether to draw the best one, if it is small enough.");
ABSL_FLAG(std::string, svg, "", "Write all timelines to this file.");
ABSL_FLAG(std::string, json, "", "Write the table, with the schedules' texts, to this file.");

namespace {

// Ctrl-C: what has been found so far is shown.
volatile std::sig_atomic_t interrupted = 0;
void interrupt(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

void write(const std::string& flag, std::string path, const std::string& text) {
  if (path.empty()) return;
  // `bazel run` starts the program in another directory than the user's.
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory != nullptr && path.front() != '/') path = std::string(directory) + "/" + path;
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(flag + ": cannot write " + path);
}

void run() {
  gpipe::internal::ComparisonOptions options;
  options.workers = absl::GetFlag(FLAGS_workers);
  options.micro_batches = absl::GetFlag(FLAGS_micro_batches);
  options.worker_cost = {absl::GetFlag(FLAGS_forward), absl::GetFlag(FLAGS_backward),
                         absl::GetFlag(FLAGS_input), absl::GetFlag(FLAGS_weight)};
  if (options.worker_cost.backward < 0) {
    options.worker_cost.backward =
        options.worker_cost.input_gradient + options.worker_cost.weight_gradient;
  }
  options.transfer = absl::GetFlag(FLAGS_transfer);
  options.memory = absl::GetFlag(FLAGS_memory);
  options.tolerance = absl::GetFlag(FLAGS_tolerance);
  options.search = absl::GetFlag(FLAGS_search);
  options.budget = absl::GetFlag(FLAGS_budget);
  options.stop = [] { return interrupted != 0; };
  std::signal(SIGINT, interrupt);
  const auto rows = gpipe::internal::compare(options);
  std::cout << gpipe::internal::to_text(rows);
  if (interrupted != 0) std::cout << "interrupted: the best that was found so far\n";
  const auto& best = rows.front();
  constexpr int64_t kMostColumns = 60;  // of micro-batches and stages: about what a screen shows
  if (absl::GetFlag(FLAGS_draw) && best.schedule.stages() * best.schedule.micro_batches() <=
                                       kMostColumns * best.schedule.workers() / 2) {
    std::cout << "\n"
              << best.name << ", with every action taking one unit:\n"
              << gpipe::draw(best.schedule, {1, 2, 1, 1});
  }
  write("--svg", absl::GetFlag(FLAGS_svg), gpipe::internal::to_svg(rows, options.transfer));
  write("--json", absl::GetFlag(FLAGS_json), gpipe::internal::to_json(rows));
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Compares the known schedules, and what a search finds, for one pipeline. Best first; what "
      "does not fit into the memory is marked.\n"
      "  compare --workers=8 --micro_batches=32 --forward=1 --input=1.1 --weight=0.7 "
      "--transfer=0.1 --memory=16 --svg=schedules.svg");
  absl::ParseCommandLine(argc, argv);
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
