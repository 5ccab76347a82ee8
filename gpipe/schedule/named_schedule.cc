#include "gpipe/schedule/named_schedule.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "gpipe/schedule/search/searched.h"
#include "gpipe/schedule/sequential.h"
#include "text/closest.h"
#include "text/quoted.h"

namespace gpipe {
namespace {

struct Entry {
  NamedSchedule named;
  // Makes a schedule from the numbers of workers, of stages per worker, and of micro-batches, and
  // from costs.
  std::function<Schedule(int64_t, int64_t, int64_t, const GeneratorCosts&)> make;
};

template <typename Make>
auto plain(Make make) {
  return [make](int64_t p, int64_t, int64_t m, const GeneratorCosts&) { return make(p, m); };
}

template <typename Make>
auto loop(Make make) {
  return [make](int64_t p, int64_t v, int64_t m, const GeneratorCosts&) { return make(p, v, m); };
}

template <typename Make>
auto costed(Make make) {
  return [make](int64_t p, int64_t, int64_t m, const GeneratorCosts& costs) {
    return make(p, m, costs);
  };
}

const std::vector<Entry>& entries() {
  constexpr auto kOneEach = PlacementShape::kOneEach;
  constexpr auto kLoop = PlacementShape::kLoop;
  constexpr auto kVShape = PlacementShape::kVShape;
  static const std::vector<Entry> kEntries = {
      {{"gpipe", "all forwards, then all backwards, the last micro-batch first", kOneEach, false},
       plain(Schedule::gpipe)},
      {{"fill-drain", "as gpipe, but backwards from the first micro-batch, as 1F1B", kOneEach,
        false},
       plain(fill_drain)},
      {{"1f1b", "one forward, one backward: the least memory of the plain ones", kOneEach, false},
       plain(Schedule::one_f_one_b)},
      {{"sequential", "all stages on one worker, one micro-batch at a time",
        PlacementShape::kOneWorker, false},
       [](int64_t, int64_t v, int64_t m, const GeneratorCosts&) { return sequential(v, m); }},
      {{"interleaved", "1F1B with several stages a worker: a shorter bubble, more transfers", kLoop,
        false},
       loop(interleaved)},
      {{"looped-bfs", "several stages a worker, each for all micro-batches at once", kLoop, false},
       loop(looped_breadth_first)},
      {{"zb-h1", "1F1B with split backwards: a third of the bubble, the same memory", kOneEach,
        true},
       plain(zb_h1)},
      {{"zb-h2", "split backwards: nothing but the filling is idle, twice the memory", kOneEach,
        true},
       costed(zb_h2)},
      {{"zb-interleaved", "interleaved with split backwards", kLoop, true},
       loop(zero_bubble_interleaved)},
      {{"zb-v", "split backwards in a V: nothing but the filling is idle, 1F1B's memory", kVShape,
        true},
       costed(zb_v)},
      {{"v-half", "split backwards in a V, half of 1F1B's memory", kVShape, true}, costed(v_half)},
      {{"v-min", "split backwards in a V, a third of 1F1B's memory", kVShape, true}, costed(v_min)},
      {{"dualpipe-v", "a V with few splits, a little more than 1F1B's memory", kVShape, true},
       costed(dualpipe_v)},
  };
  return kEntries;
}

// Names of schedules in papers and other libraries. If a user gives one, the message suggests our
// name. They are not accepted as names, because some mean schedules that only resemble ours.
struct Also {
  const char* name;
  const char* ours;
};
constexpr Also kAlso[] = {
    {"afab", "fill-drain"},
    {"all-forward-all-backward", "fill-drain"},
    {"dapple", "1f1b"},
    {"one-forward-one-backward", "1f1b"},
    {"pipedream-flush", "1f1b"},
    {"breadth-first", "looped-bfs"},
    {"depth-first", "interleaved"},
    {"dfs", "interleaved"},
    {"virtual-pipeline", "interleaved"},
    {"vpp", "interleaved"},
    {"zero-bubble", "zb-h1"},
};

// The name of a schedule that the user probably meant; empty if no name is similar.
std::string meant(std::string_view name) {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.named.name);
  for (const Also& also : kAlso) names.push_back(also.name);
  std::string closest = text::closest(name, names);
  for (const Also& also : kAlso) {
    if (also.name == closest) return also.ours;
  }
  return closest;
}

const Entry& find(std::string_view name) {
  const std::vector<Entry>& all = entries();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Entry& entry) { return entry.named.name == name; });
  if (found != all.end()) return *found;
  const std::string near = meant(name);
  throw std::invalid_argument("there is no schedule " + internal::quoted(name) +
                              (near.empty() ? "" : " (did you mean " + near + "?)") +
                              "; there are " + schedule_names());
}

// How many stages each worker of the schedule has. Checks all options, also the costs of schedules
// that do not use them.
int64_t stages_per_worker(const NamedSchedule& named, const NamedScheduleOptions& options) {
  internal::check_costs(options.costs);
  const int64_t given = options.stages_per_worker;
  const auto fail = [&](const std::string& what) {
    throw std::invalid_argument("the schedule " + named.name + " has " + what + ", got " +
                                std::to_string(given) + "; leave it out, or take " +
                                (named.split ? "zb-interleaved" : "interleaved"));
  };
  switch (named.shape) {
    case PlacementShape::kLoop:
      if (given < 0) fail("at least 1 stage per worker");
      return given == 0 ? 2 : given;
    case PlacementShape::kVShape:
      if (given != 0 && given != 2) fail("2 stages per worker");
      return 2;
    case PlacementShape::kOneEach:
      if (given != 0 && given != 1) fail("1 stage per worker");
      return 1;
    case PlacementShape::kOneWorker:
      if (given != 0) fail("all stages on one worker");
      return 0;
  }
  return 1;
}

int64_t workers_of(const NamedSchedule& named, int64_t stages, int64_t v) {
  if (named.shape == PlacementShape::kOneWorker) return 1;
  if (stages < 1) {
    throw std::invalid_argument("the schedule " + named.name + " needs at least 1 stage, got " +
                                std::to_string(stages) + "; the least is " + std::to_string(v));
  }
  if (stages > Schedule::kMostCells || v > Schedule::kMostCells) {
    throw std::invalid_argument("the schedule " + named.name + " of " + std::to_string(stages) +
                                " stages, " + std::to_string(v) + " per worker; the most are " +
                                std::to_string(Schedule::kMostCells));
  }
  if (stages % v == 0) return stages / v;
  const int64_t below = stages / v * v;
  std::string nearest = below > 0 ? std::to_string(below) + " or " : "";
  nearest += std::to_string(below + v) + " stages";
  if (named.shape == PlacementShape::kLoop) {
    int64_t fewer = std::min(v, stages);
    while (stages % fewer != 0) --fewer;
    int64_t more = v;
    while (stages % more != 0 && more < stages) ++more;
    nearest += ", or " + std::to_string(fewer);
    if (more != fewer && stages % more == 0) nearest += " or " + std::to_string(more);
    nearest += " stages per worker";
  }
  throw std::invalid_argument("the schedule " + named.name + " with " + std::to_string(v) +
                              " stages per worker needs a multiple of that, got " +
                              std::to_string(stages) + " stages; take " + nearest);
}

}  // namespace

const std::vector<NamedSchedule>& named_schedules() {
  static const std::vector<NamedSchedule> kNamed = [] {
    std::vector<NamedSchedule> all;
    for (const Entry& entry : entries()) all.push_back(entry.named);
    return all;
  }();
  return kNamed;
}

std::string schedule_names() {
  std::string names;
  for (const Entry& entry : entries()) names += (names.empty() ? "" : ", ") + entry.named.name;
  return names;
}

ScheduleGenerator schedule_by_name(std::string_view name, const NamedScheduleOptions& options) {
  const Entry& entry = find(name);
  const int64_t v = stages_per_worker(entry.named, options);
  return [&entry, v, costs = options.costs](int64_t stages, int64_t micro_batches) {
    const int64_t workers = workers_of(entry.named, stages, v);
    if (micro_batches < 1) {
      throw std::invalid_argument("the schedule " + entry.named.name +
                                  " needs at least 1 micro-batch, got " +
                                  std::to_string(micro_batches) + "; the least is 1");
    }
    const bool one_worker = entry.named.shape == PlacementShape::kOneWorker;
    return entry.make(workers, one_worker ? stages : v, micro_batches, costs);
  };
}

Schedule schedule_by_name(std::string_view name, int64_t stages, int64_t micro_batches,
                          const NamedScheduleOptions& options) {
  return schedule_by_name(name, options)(stages, micro_batches);
}

Placement placement_by_name(std::string_view name, int64_t stages,
                            const NamedScheduleOptions& options) {
  if (name == "loop" || name == "v_shape" || name == "one_each") {
    throw std::invalid_argument("placement_by_name takes the name of a schedule, got " +
                                internal::quoted(name) +
                                "; that placement is Placement::" + std::string(name) + "(...)");
  }
  const NamedSchedule& named = find(name).named;
  const int64_t v = stages_per_worker(named, options);
  const int64_t workers = workers_of(named, stages, v);
  switch (named.shape) {
    case PlacementShape::kVShape:
      return Placement::v_shape(workers);
    case PlacementShape::kOneWorker:
      return Placement::loop(1, stages);
    case PlacementShape::kLoop:
    case PlacementShape::kOneEach:
      break;
  }
  return Placement::loop(workers, v);
}

}  // namespace gpipe
