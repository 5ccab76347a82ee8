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
  // How many times as long each worker takes for its actions; if empty, all take the times above.
  // Positive and finite. Schedules that follow costs (zb-...) are made for equal workers, and
  // searches for these.
  std::vector<double> slowness;
  // The most that a worker may hold, in micro-batches of all its layers; 0: no limit.
  double memory = 0.0;
  // By this part the makespan may grow until a link counts as having no slack left.
  double tolerance = 0.05;
  std::vector<int64_t> stages_per_worker = {2, 4};  // for loops
  bool search = true;
  int64_t budget = 0;  // the budget of each search
  // Called now and then; if it returns true, the comparison ends with the rows that it has so far.
  std::function<bool()> stop;
};

struct ComparisonRow {
  std::string name;  // as for schedule_by_name(), followed by "x4" if it has 4 stages a worker
  Schedule schedule;
  std::vector<StageCost> costs;  // [stage]
  double makespan = 0.0;
  double bubble = 0.0;    // share of idle time
  double peak = 0.0;      // micro-batches of all of a worker's layers, on the worst worker
  int64_t splits = 0;     // split backwards of a worker, on average
  int64_t transfers = 0;  // that a worker sends, on average
  double slack = 0.0;     // link_slack()
  bool fits = true;
};

// The best row comes first; those that do not fit come last. There is at least one, however early
// `stop` returns true. Throws std::invalid_argument for options that make no sense.
std::vector<ComparisonRow> compare(const ComparisonOptions& options);

// Empty if one of the rows fits. Otherwise an error message: that none fits, and which memory would
// be enough.
std::string nothing_fits(const std::vector<ComparisonRow>& rows);

// The table as text for people, and as JSON for programs.
std::string to_text(const std::vector<ComparisonRow>& rows);
std::string to_json(const std::vector<ComparisonRow>& rows);
// The timelines of the rows as a picture, one below the other, on one scale.
std::string to_svg(const std::vector<ComparisonRow>& rows, double transfer);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_COMMANDS_COMPARISON_H_
