// Shows a schedule: `tools/bazel run //gpipe/schedule:print -- --schedule=1f1b --stages=4
// --micro_batches=8`.

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "command/flag_values.h"
#include "command/run_main.h"
#include "gpipe/schedule/commands/flags.h"
#include "gpipe/schedule/csv_schedule.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/schedule.h"

ABSL_FLAG(
    std::string, schedule, "1f1b",
    "Which schedule to make: gpipe, fill-drain, 1f1b, sequential, interleaved, looped-bfs, "
    "zb-h1, zb-h2, zb-interleaved, zb-v, v-half, v-min or dualpipe-v. gpipe and fill-drain both "
    "run all forwards, then all backwards: gpipe from the last micro-batch to the first, "
    "fill-drain from the first to the last.");
ABSL_FLAG(
    int64_t, stages_per_worker, 0,
    "Stages on each worker, for interleaved and similar schedules. Default: 0, which means 2.");
ABSL_FLAG(std::string, file, "",
          "Read the schedule from this file instead: its text, or a CSV "
          "table of torch.distributed.pipelining if the name ends in .csv.");
ABSL_FLAG(int64_t, stages, 4, "Number of stages.");
ABSL_FLAG(int64_t, micro_batches, 8, "Number of micro-batches.");
ABSL_FLAG(int64_t, forward_cost, 1, "Columns that a forward takes in the drawing.");
ABSL_FLAG(int64_t, backward_cost, 1, "Columns that a backward takes in the drawing.");
ABSL_FLAG(int64_t, input_gradient_cost, 1, "Columns that an input gradient takes in the drawing.");
ABSL_FLAG(int64_t, weight_gradient_cost, 1, "Columns that a weight gradient takes in the drawing.");

namespace {

using gpipe::internal::at_least;

gpipe::Schedule read(const std::string& given) {
  const std::string text = gpipe::command::FileFlags().contents("file", given);
  constexpr std::string_view kCsv = ".csv";
  const bool csv = given.size() > kCsv.size() && given.substr(given.size() - kCsv.size()) == kCsv;
  return csv ? gpipe::schedule_from_csv(text) : gpipe::Schedule::from_text(text);
}

// The message without the name of a function at its beginning, because that name means nothing to a
// user of the program.
std::string without_function(const std::string& message) {
  const size_t colon = message.find(": ");
  const bool has_name =
      colon != std::string::npos &&
      std::all_of(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(colon),
                  [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == ':'; });
  return has_name ? message.substr(colon + 2) : message;
}

gpipe::Schedule make() {
  if (!absl::GetFlag(FLAGS_file).empty()) return read(absl::GetFlag(FLAGS_file));
  const int64_t stages = at_least(int64_t{1}, FLAGS_stages);
  const int64_t micro_batches = at_least(int64_t{1}, FLAGS_micro_batches);
  gpipe::NamedScheduleOptions options;
  options.stages_per_worker = at_least(int64_t{0}, FLAGS_stages_per_worker);
  try {
    return gpipe::schedule_by_name(absl::GetFlag(FLAGS_schedule), stages, micro_batches, options);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(gpipe::internal::given(FLAGS_schedule) + ": " +
                                without_function(error.what()));
  }
}

void print() {
  const gpipe::DrawingCosts costs = {at_least(int64_t{1}, FLAGS_forward_cost),
                                     at_least(int64_t{1}, FLAGS_backward_cost),
                                     at_least(int64_t{1}, FLAGS_input_gradient_cost),
                                     at_least(int64_t{1}, FLAGS_weight_gradient_cost)};
  const gpipe::Schedule schedule = make();
  std::cout << schedule.to_text() << std::endl;
  const gpipe::ScheduleFacts facts = schedule.verify(gpipe::Sends::kPostedAhead);
  std::cout << gpipe::draw(schedule, costs) << "\nwith every action taking one unit: makespan "
            << facts.makespan << ", bubble " << 100.0 * facts.bubble_ratio
            << " %\npeak live micro-batches per stage:";
  for (int64_t live : facts.peak_live) std::cout << " " << live;
  std::cout << "\nand per worker:";
  for (int64_t live : facts.worker_peak_live) std::cout << " " << live;
  std::cout << "\nsums in one order: " << (facts.ascending ? "yes" : "no");
  int64_t ahead = 0;
  for (const gpipe::ReceivesAhead& each : facts.receives_ahead)
    ahead = std::max(ahead, each.actions);
  std::cout << "\nactions by which receives must be posted ahead: " << ahead;
  std::cout << "\nsends that wait for their receiver: ";
  try {
    schedule.verify(gpipe::Sends::kRendezvous);
    std::cout << "fine" << std::endl;
  } catch (const std::invalid_argument& error) {
    std::cout << error.what() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return gpipe::command::run_main(argc, argv,
                                  "Prints a schedule: its text, its timeline and what it costs.\n"
                                  "  print --schedule=1f1b --stages=4 --micro_batches=8\n"
                                  "  print --file=my_schedule.txt --backward_cost=2",
                                  print);
}
