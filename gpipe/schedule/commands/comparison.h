// compare: compares all known schedules for one pipeline in a table. Internal to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_COMMANDS_COMPARISON_H_
#define GPIPE_SCHEDULE_COMMANDS_COMPARISON_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::internal {

struct ComparisonOptions {
  int64_t workers = 4;
  int64_t micro_batches = 8;
  // The costs of all layers of a worker. Schedules with v stages a worker cut these layers into v
  // stages, each with a v-th of the costs and of the memory.
  StageCost worker_cost = {1.0, 2.0, 1.0, 1.0};
  double transfer = 0.0;
  // How many times as long each worker takes for its actions, positive and finite. If it is empty,
  // all workers take the times above. Schedules that follow costs (zb-...) are made for equal
  // workers; searches are made for the workers given here.
  std::vector<double> slowness;
  // The most that a worker may hold, in micro-batches of all its layers; 0: no limit.
  double memory = 0.0;
  // The part by which the makespan may grow before a link counts as having no slack left.
  double tolerance = 0.05;
  std::vector<int64_t> stages_per_worker = {2, 4};  // tried for schedules in a loop
  bool search = true;
  int64_t budget = 0;  // the budget of each search
  // `stop` is called now and then. If it returns true, the comparison ends with the rows that it
  // has so far.
  std::function<bool()> stop;
};

struct ComparisonRow {
  std::string name;  // as for schedule_by_name(), followed by "x4" if it has 4 stages a worker
  Schedule schedule;
  std::vector<StageCost> costs;  // [stage]
  double makespan = 0.0;
  double bubble = 0.0;  // share of idle time
  // The most that a worker holds, in micro-batches of all of a worker's layers.
  double peak = 0.0;
  int64_t splits = 0;     // split backwards of a worker, on average
  int64_t transfers = 0;  // how many values a worker sends, on average
  double slack = 0.0;     // link_slack()
  bool fits = true;
};

// Returns the rows of the table. The best comes first; rows that do not fit the memory come last.
// There is at least one, however early `stop` returns true. Throws std::invalid_argument for
// options that make no sense.
std::vector<ComparisonRow> compare(const ComparisonOptions& options);

// An error message if no row fits: it says so, and which memory would be enough. Empty if a row
// fits.
std::string nothing_fits(const std::vector<ComparisonRow>& rows);

// The table as text for people, and as JSON for programs.
std::string to_text(const std::vector<ComparisonRow>& rows);
std::string to_json(const std::vector<ComparisonRow>& rows);
// The timelines of the rows as a picture, one below the other, on one scale.
std::string to_svg(const std::vector<ComparisonRow>& rows, double transfer);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_COMMANDS_COMPARISON_H_
