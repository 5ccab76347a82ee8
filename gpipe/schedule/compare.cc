// Compares the known schedules for one pipeline: `tools/bazel run //gpipe/schedule:compare --
// --workers=8 --micro_batches=32 --forward=1 --input=1.1 --weight=0.7 --transfer=0.1 --memory=16`.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/run_main.h"
#include "command/wrong_value.h"
#include "gpipe/schedule/commands/comparison.h"
#include "gpipe/schedule/commands/flags.h"
#include "gpipe/schedule/drawing.h"
#include "text/at_least.h"

ABSL_FLAG(int64_t, workers, 4, "Number of workers.");
ABSL_FLAG(int64_t, micro_batches, 8, "Number of micro-batches.");
ABSL_FLAG(double, forward, 1, "Time of a forward of all layers of a worker, for one micro-batch.");
ABSL_FLAG(double, input, 1, "Time of an input gradient.");
ABSL_FLAG(double, weight, 1, "Time of a weight gradient.");
ABSL_FLAG(std::optional<double>, backward, std::nullopt,
          "Time of a whole backward. Default: both gradients together; splitting usually costs "
          "time, so a measured one is less.");
ABSL_FLAG(double, transfer, 0, "Time of a transfer between two workers.");
ABSL_FLAG(std::string, slowness, "",
          "How many times as long each worker takes, such as 1,1,1,1.7 where the last of four "
          "devices is slower. Default: all take as long.");
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

// Ctrl-C sets this. The program then finishes the schedule that it is making and shows the rows
// that it has.
volatile std::sig_atomic_t interrupted = 0;
void interrupt(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
  const int error = errno;
  constexpr char kText[] = "\ncompare: one more schedule, then the table; Ctrl-C again: at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  errno = error;
}

std::vector<double> read_slowness(int64_t workers) {
  const std::string text = absl::GetFlag(FLAGS_slowness);
  std::vector<double> slowness;
  if (text.empty()) return slowness;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    double value = 0;
    if (!absl::SimpleAtod(item, &value) || !(value > 0) || !std::isfinite(value)) {
      throw gpipe::command::wrong_value(
          "slowness", text, absl::StrCat("'", item, "' is not a finite number above 0"));
    }
    slowness.push_back(value);
  }
  if (slowness.size() != static_cast<size_t>(workers)) {
    throw gpipe::command::wrong_value("slowness", text,
                                      absl::StrCat("it has ", slowness.size(), " numbers; give ",
                                                   workers, ", one for each of --workers"));
  }
  return slowness;
}

gpipe::internal::ComparisonOptions read_flags() {
  using gpipe::internal::at_least;
  gpipe::internal::ComparisonOptions options;
  options.workers = at_least(int64_t{1}, FLAGS_workers);
  options.micro_batches = at_least(int64_t{1}, FLAGS_micro_batches);
  const int64_t most =
      *std::max_element(options.stages_per_worker.begin(), options.stages_per_worker.end());
  if (options.workers > gpipe::Schedule::kMostCells / most / options.micro_batches) {
    throw std::invalid_argument(
        gpipe::internal::given(FLAGS_workers) + " " + gpipe::internal::given(FLAGS_micro_batches) +
        ": give smaller ones; with " + std::to_string(most) +
        " stages per worker there may be at most 2^24 cells (stages x micro-batches)");
  }
  options.worker_cost = {at_least(0.0, FLAGS_forward), 0.0, at_least(0.0, FLAGS_input),
                         at_least(0.0, FLAGS_weight)};
  options.worker_cost.backward =
      options.worker_cost.input_gradient + options.worker_cost.weight_gradient;
  if (const std::optional<double> backward = absl::GetFlag(FLAGS_backward)) {
    options.worker_cost.backward =
        gpipe::text::at_least(0.0, *backward, gpipe::internal::given(FLAGS_backward));
  }
  options.transfer = at_least(0.0, FLAGS_transfer);
  options.slowness = read_slowness(options.workers);
  options.memory = at_least(0.0, FLAGS_memory);
  options.tolerance = at_least(0.0, FLAGS_tolerance);
  options.search = absl::GetFlag(FLAGS_search);
  options.budget = at_least(int64_t{0}, FLAGS_budget);
  // The least budget that search() accepts for the pipeline with the most stages.
  const int64_t least = 3 * options.workers * most * options.micro_batches;
  if (options.search && options.budget > 0 && options.budget < least) {
    throw std::invalid_argument(gpipe::internal::given(FLAGS_budget) + ": give at least " +
                                std::to_string(least) +
                                ", the actions of the largest schedule, or 0 for the default");
  }
  return options;
}

void run(gpipe::internal::ComparisonOptions options) {
  // The output files are checked before the searches, because searches take seconds.
  gpipe::command::FileFlags files;
  const std::string svg = files.output("svg", absl::GetFlag(FLAGS_svg));
  const std::string json = files.output("json", absl::GetFlag(FLAGS_json));
  options.stop = [] { return interrupted != 0; };
  std::signal(SIGINT, interrupt);
  const auto rows = gpipe::internal::compare(options);
  std::cout << gpipe::internal::to_text(rows);
  if (interrupted != 0) std::cout << "interrupted: the best that was found so far\n";
  const auto& best = rows.front();
  // The most actions in a row of a drawing, two for each cell: about what a screen shows.
  constexpr int64_t kMostColumns = 60;
  if (absl::GetFlag(FLAGS_draw) && best.schedule.stages() * best.schedule.micro_batches() <=
                                       kMostColumns * best.schedule.workers() / 2) {
    std::cout << "\n"
              << best.name << ", with a whole backward twice as wide as all other actions:\n"
              << gpipe::draw(best.schedule, {1, 2, 1, 1});
  } else if (absl::GetFlag(FLAGS_draw)) {
    std::cout << "\n"
              << best.name << " is too large to be drawn here; --svg=FILE draws all of them\n";
  }
  using gpipe::command::write_result;
  write_result(svg, gpipe::internal::to_svg(rows, options.transfer));
  write_result(json, gpipe::internal::to_json(rows));
  const std::string none = gpipe::internal::nothing_fits(rows);
  if (!none.empty() && interrupted == 0)
    throw std::invalid_argument(gpipe::internal::given(FLAGS_memory) + ": " + none);
}

}  // namespace

int main(int argc, char** argv) {
  return gpipe::command::run_main(
      argc, argv,
      "Compares the known schedules, and what a search finds, for one pipeline. Best first; what "
      "does not fit into the memory is marked, and it is an error if nothing does. Ctrl-C ends it "
      "with what has been compared by then, and exit code 0.\n"
      "  compare --workers=8 --micro_batches=32 --forward=1 --input=1.1 --weight=0.7 "
      "--transfer=0.1 --memory=16 --svg=schedules.svg",
      [] { run(read_flags()); });
}
