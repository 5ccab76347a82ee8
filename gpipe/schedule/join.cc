#include "gpipe/schedule/join.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace gpipe {
namespace {

struct Pair {
  size_t worker;
  size_t index;  // of the input gradient
  double start;
};

Schedule with_joined(const Schedule& schedule, const std::vector<Pair>& pairs) {
  std::vector<std::vector<Action>> table = schedule.table();
  std::vector<std::vector<bool>> gone;
  for (const auto& actions : table) gone.emplace_back(actions.size(), false);
  for (const Pair& pair : pairs) {
    table[pair.worker][pair.index].kind = ActionKind::kBackward;
    gone[pair.worker][pair.index + 1] = true;
  }
  for (size_t worker = 0; worker < table.size(); ++worker) {
    size_t kept = 0;
    for (size_t k = 0; k < table[worker].size(); ++k) {
      if (!gone[worker][k]) table[worker][kept++] = table[worker][k];
    }
    table[worker].resize(kept);
  }
  return Schedule::create(schedule.stages(), schedule.micro_batches(), std::move(table));
}

class Joiner {
 public:
  Joiner(const Schedule& schedule, const SimulateOptions& costs, double most)
      : schedule_(schedule), costs_(costs), most_(most) {}

  // Adds as many of the pairs as it finds.
  void add(const std::vector<Pair>& pairs) {
    if (pairs.empty()) return;
    std::vector<Pair> all = joined_;
    all.insert(all.end(), pairs.begin(), pairs.end());
    if (simulate(with_joined(schedule_, all), costs_).makespan <= most_) {
      joined_ = std::move(all);
      return;
    }
    if (pairs.size() == 1) return;
    const auto half = pairs.begin() + static_cast<std::ptrdiff_t>(pairs.size() / 2);
    add({half, pairs.end()});  // the later ones first: after them comes less
    add({pairs.begin(), half});
  }

  Schedule result() const { return with_joined(schedule_, joined_); }

 private:
  const Schedule& schedule_;
  const SimulateOptions& costs_;
  const double most_;
  std::vector<Pair> joined_;
};

}  // namespace

Schedule joined(const Schedule& schedule, const SimulateOptions& costs) {
  const Simulation run = simulate(schedule, costs);
  std::vector<Pair> pairs;
  for (size_t worker = 0; worker < run.workers.size(); ++worker) {
    const std::vector<TimedAction>& timeline = run.workers[worker];
    for (size_t k = 0; k + 1 < timeline.size(); ++k) {
      Action action = timeline[k].action;
      if (action.kind != ActionKind::kInputGradient) continue;
      const Action weight{ActionKind::kWeightGradient, action.stage, action.micro_batch};
      if (timeline[k + 1].action != weight) continue;
      const double both = costs.action(action) + costs.action(weight);
      action.kind = ActionKind::kBackward;
      if (costs.action(action) <= both * (1.0 + 1e-12)) {
        pairs.push_back({worker, k, timeline[k].start});
      }
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.start < b.start; });
  Joiner joiner(schedule, costs, run.makespan * (1.0 + 1e-12));
  joiner.add(pairs);
  return joiner.result();
}

int64_t splits(const Schedule& schedule) {
  int64_t count = 0;
  for (const std::vector<Action>& actions : schedule.table()) {
    count += std::count_if(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == ActionKind::kInputGradient;
    });
  }
  return count;
}

}  // namespace gpipe
