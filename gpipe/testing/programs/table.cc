#include "gpipe/testing/programs/table.h"

#include <random>
#include <vector>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/schedule/search/search_work.h"

namespace gpipe::testing::programs {
namespace {

// The most workers for generators that search. With more, a search would take longer than about 0.2
// s for each number of micro-batches.
constexpr int64_t kMostSearchingWorkers = 3;

struct Generator {
  std::string name;
  NamedScheduleOptions options;
};

// The generators for so many stages, except Schedule::gpipe, which does not ascend and is an Entry
// of its own.
std::vector<Generator> generators(int64_t stages) {
  std::vector<Generator> result;
  const auto add = [&](const NamedSchedule& named, int64_t stages_per_worker) {
    NamedScheduleOptions options;
    options.stages_per_worker = stages_per_worker;
    // search_work() is asked for a single micro-batch, because all generators that may search do so
    // then.
    if (internal::search_work(named.name, stages, 1, options) == 0 ||
        placement_by_name(named.name, stages, options).workers() <= kMostSearchingWorkers) {
      result.push_back({named.name, options});
    }
  };
  for (const NamedSchedule& named : named_schedules()) {
    if (named.name == "gpipe") continue;
    switch (named.shape) {
      case PlacementShape::kOneEach:
      case PlacementShape::kOneWorker:
        add(named, 0);
        break;
      case PlacementShape::kLoop:
        for (int64_t v = 2; v <= stages; ++v) {
          if (stages % v == 0) add(named, v);
        }
        break;
      case PlacementShape::kVShape:
        if (stages % 2 == 0) add(named, 0);
        break;
    }
  }
  return result;
}

Generator generator_of(const Table& table) {
  const std::vector<Generator> all = generators(table.stages);
  std::mt19937_64 random(table.seed);
  return all[random() % all.size()];
}

}  // namespace

Schedule Table::schedule(int64_t micro_batches) const {
  if (generator) {
    const Generator chosen = generator_of(*this);
    return schedule_by_name(chosen.name, stages, micro_batches, chosen.options);
  }
  std::mt19937_64 random(seed);
  return random_schedule(stages, micro_batches, MicroBatchOrder::kAscending, random);
}

std::optional<Placement> Table::placement() const {
  if (!generator) return std::nullopt;
  const Generator chosen = generator_of(*this);
  return placement_by_name(chosen.name, stages, chosen.options);
}

std::string Table::name() const {
  if (!generator) return "a random schedule of the seed";
  const Generator chosen = generator_of(*this);
  const int64_t v = chosen.options.stages_per_worker;
  return chosen.name + (v > 0 ? ", " + std::to_string(v) + " stages per worker" : "");
}

}  // namespace gpipe::testing::programs
