#include "diagnose/advice.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "balance/cut/move_cuts.h"
#include "balance/cut/pieces.h"
#include "balance/step/explain.h"
#include "gpipe/chunk_sizes.h"

namespace gpipe::diagnosis {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// A change is taken back if it gains less than this share, because fewer changes are better.
constexpr double kWorthAChange = 0.003;
// How many of the best combinations get a search for their best cut.
constexpr size_t kSearched = 3;
constexpr int kMostSimulations = 300;  // the most that a search makes

class AdviceSearch {
 public:
  AdviceSearch(const Costs& costs, int64_t rows, const PipelineSetup& now, const Machine& machine,
               const AdviceOptions& options)
      : costs_(costs),
        rows_(rows),
        now_(now),
        machine_(machine),
        options_(options),
        pieces_(static_cast<int64_t>(costs.profiles.front().layers.size()), costs.together,
                "advice: ") {}

  // The modeled seconds of a step; infinite for a setup that cannot run or does not fit.
  double step(const PipelineSetup& setup) const {
    if (options_.check) options_.check();
    if (!runs(setup) || !fits(setup)) return kNever;
    return model_step(costs_, rows_, setup, machine_).step;
  }

  // The predicted bytes, by worker.
  std::vector<int64_t> memory(const PipelineSetup& setup) const {
    return model_memory(costs_, rows_, setup, options_.param_scale).workers;
  }

  PipelineSetup with_chunks() const {
    PipelineSetup best = now_;
    for (const int64_t chunks : options_.chunks) {
      PipelineSetup other = now_;
      other.chunks = chunks;
      keep_faster(best, other);
    }
    return best;
  }

  PipelineSetup with_balance() const { return searched(now_, /*modes=*/false); }

  // The setups with other checkpoint modes: the fastest modes that fit, and kExceptLast everywhere,
  // which keeps at most one graph for each stage.
  std::vector<PipelineSetup> with_checkpoints() const {
    PipelineSetup sparing = now_;
    sparing.checkpoint_all(Checkpoint::kExceptLast);
    return {with_fastest_modes(now_), sparing};
  }

  // The setups with other schedules that no other schedule beats in both time and memory, the
  // fastest first.
  std::vector<PipelineSetup> with_schedules() const {
    struct Tried {
      PipelineSetup setup;
      double step;
      int64_t memory;
    };
    std::vector<Tried> tried;
    for (PipelineSetup& other : with_each_schedule(now_)) {
      if (other.schedule.name == now_.schedule.name) continue;
      const double time = step(other);
      if (time == kNever) continue;
      const int64_t memory = most_memory(other);
      tried.push_back({std::move(other), time, memory});
    }
    std::stable_sort(tried.begin(), tried.end(),
                     [](const Tried& a, const Tried& b) { return a.step < b.step; });
    std::vector<Tried> best;
    for (Tried& each : tried) {
      if (!best.empty() && each.memory >= best.back().memory) continue;
      if (!best.empty() && each.step <= best.back().step * (1 + kWorthAChange)) best.pop_back();
      best.push_back(std::move(each));
    }
    std::vector<PipelineSetup> result;
    for (Tried& each : best) result.push_back(std::move(each.setup));
    return result;
  }

  // The best setup that is found if number of micro-batches, schedule, modes and cut may change
  // together.
  PipelineSetup with_all() const {
    std::set<int64_t> chunks(options_.chunks.begin(), options_.chunks.end());
    chunks.insert(now_.chunks);
    std::vector<std::pair<double, PipelineSetup>> found;
    for (const int64_t number : chunks) {
      PipelineSetup other = now_;
      other.chunks = number;
      for (PipelineSetup& setup : with_each_schedule(other)) {
        setup = with_fastest_modes(setup);
        PipelineSetup even = with_fastest_modes(with_even_balance(setup));
        found.emplace_back(step(setup), std::move(setup));
        found.emplace_back(step(even), std::move(even));
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    PipelineSetup best = now_;
    for (size_t k = 0; k < std::min(found.size(), kSearched); ++k) {
      keep_faster(best, searched(found[k].second, /*modes=*/true));
    }
    return simplified(best);
  }

 private:
  int64_t micro_batches(const PipelineSetup& setup) const {
    return chunk_sizes(rows_, setup.chunks).micro_batches;
  }
  Schedule schedule_of(const PipelineSetup& setup) const {
    return setup.schedule_for(micro_batches(setup));
  }

  // `start` with each schedule that it can run: the present one, and those of
  // AdviceOptions::schedules whose tables differ from the ones before.
  std::vector<PipelineSetup> with_each_schedule(const PipelineSetup& start) const {
    std::vector<ScheduleChoice> schedules = {now_.schedule};
    schedules.insert(schedules.end(), options_.schedules.begin(), options_.schedules.end());
    std::vector<PipelineSetup> result;
    std::vector<Schedule> tables;
    for (const ScheduleChoice& schedule : schedules) {
      PipelineSetup setup = start;
      setup.schedule = schedule;
      if (!runs(setup)) continue;
      Schedule table = schedule_of(setup);
      if (std::find(tables.begin(), tables.end(), table) != tables.end()) continue;
      tables.push_back(std::move(table));
      result.push_back(std::move(setup));
    }
    return result;
  }

  bool runs(const PipelineSetup& setup) const {
    try {
      (void)schedule_of(setup);
      return true;
    } catch (const std::invalid_argument&) {
      // The generator does not support this number of micro-batches.
      return false;
    }
  }

  int64_t most_memory(const PipelineSetup& setup) const {
    const std::vector<int64_t> memory = this->memory(setup);
    return *std::max_element(memory.begin(), memory.end());
  }

  bool fits(const PipelineSetup& setup) const {
    if (options_.memory_limit <= 0) return true;
    return most_memory(setup) <= options_.memory_limit;
  }

  void keep_faster(PipelineSetup& best, const PipelineSetup& other) const {
    if (step(other) < step(best)) best = other;
  }

  // Gives each partition the fastest mode with which its worker fits. Each worker is treated alone,
  // because the modes of one worker do not change another worker's memory. The first partitions of
  // a worker get slower modes first.
  PipelineSetup with_fastest_modes(PipelineSetup setup) const {
    setup.checkpoint_all(Checkpoint::kNever);
    if (options_.memory_limit <= 0) return setup;
    const Schedule schedule = schedule_of(setup);
    const bool shared = schedule.workers() < schedule.stages();
    for (const Checkpoint slower : {Checkpoint::kExceptLast, Checkpoint::kAlways}) {
      std::vector<int64_t> memory = this->memory(setup);
      for (size_t j = 0; j < setup.checkpoints.size(); ++j) {
        const auto worker = static_cast<size_t>(schedule.worker_of(static_cast<int64_t>(j)));
        if (memory[worker] <= options_.memory_limit) continue;
        setup.checkpoints[j] = slower;
        if (shared) memory = this->memory(setup);
      }
    }
    return setup;
  }

  // The setup with the cut that best_balance() finds, which assumes the same mode for all
  // partitions.
  PipelineSetup with_even_balance(PipelineSetup setup) const {
    balance::Profile profile = costs_.at(chunk_sizes(rows_, setup.chunks).rows);
    const auto of_loss = static_cast<double>(profile.batch_rows);
    balance::LayerProfile loss;
    loss.forward = costs_.loss_forward * of_loss;
    loss.backward = costs_.loss_backward * of_loss;
    // The loss has no weights, so all of its backward counts as an input gradient, for which the
    // stage before waits.
    loss.split = balance::SplitBackward{loss.backward, 0, 0};
    add_times(profile.layers.back(), loss);
    balance::ExplainOptions options;
    options.chunks = micro_batches(setup);
    options.checkpoint = setup.checkpoints.front();
    options.schedule = setup.schedule.make;
    static_cast<Machine&>(options) = machine_;
    options.keep_together = costs_.together;
    setup.balance = balance::best_balance(profile, setup.stages(), options);
    return setup;
  }

  // Moves cuts for as long as that makes the step shorter.
  PipelineSetup searched(const PipelineSetup& start, bool modes) const {
    PipelineSetup best = start;
    keep_faster(best, with_even_balance(start));
    double best_step = step(best);
    int left = kMostSimulations;
    balance::CutMoves moves;
    for (const int64_t layers : best.balance) {
      moves.distance = std::max(moves.distance, layers / 8);
    }
    moves.partitions = false;
    moves.goes_on = [&] { return left > 0; };
    moves.is_better = [&](const std::vector<int64_t>& balance) {
      if (left == 0) return false;
      --left;
      PipelineSetup moved = best;
      moved.balance = balance;
      if (modes) moved = with_fastest_modes(moved);
      const double time = step(moved);
      if (!(time < best_step * (1 - 1e-9))) return false;
      best = std::move(moved);
      best_step = time;
      return true;
    };
    move_cuts(best.balance, pieces_, moves);
    return best;
  }

  // Takes back changes that gain next to nothing. If another schedule is about as fast and holds
  // less, takes that schedule.
  PipelineSetup simplified(PipelineSetup setup) const {
    const double most = step(setup) * (1 + kWorthAChange);
    for (PipelineSetup& other : with_each_schedule(setup)) {
      if (step(other) <= most && most_memory(other) < most_memory(setup)) setup = std::move(other);
    }
    const auto back = [&](auto member) {
      PipelineSetup other = setup;
      other.*member = now_.*member;
      if (step(other) <= most) setup = std::move(other);
    };
    back(&PipelineSetup::schedule);
    back(&PipelineSetup::chunks);
    back(&PipelineSetup::balance);
    back(&PipelineSetup::checkpoints);
    return setup;
  }

  const Costs& costs_;
  const int64_t rows_;
  const PipelineSetup& now_;
  const Machine& machine_;
  const AdviceOptions& options_;
  const balance::Pieces pieces_;
};

int changes(const PipelineSetup& a, const PipelineSetup& b) {
  return static_cast<int>(a.chunks != b.chunks) + static_cast<int>(a.balance != b.balance) +
         static_cast<int>(a.checkpoints != b.checkpoints) +
         static_cast<int>(a.schedule.name != b.schedule.name);
}

}  // namespace

std::vector<Advice> find_advice(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                                const Machine& machine, double step, const AdviceOptions& options) {
  const double modeled = model_step(costs, rows, setup, machine).step;
  const AdviceSearch search(costs, rows, setup, machine, options);
  std::vector<Advice> advice;
  const auto add = [&](Change change, const PipelineSetup& other, double least) {
    if (changes(other, setup) == 0 || modeled <= 0) return;
    const double predicted = search.step(other);
    Advice advice_item;
    advice_item.change = change;
    advice_item.setup = other;
    advice_item.step = step * predicted / modeled;
    advice_item.speed_up = modeled / predicted;
    if (!(advice_item.speed_up >= least)) return;
    for (const Advice& known : advice) {
      if (changes(known.setup, other) == 0) return;
    }
    advice_item.memory = search.memory(other);
    advice.push_back(std::move(advice_item));
  };
  add(Change::kChunks, search.with_chunks(), options.least_speed_up);
  add(Change::kBalance, search.with_balance(), options.least_speed_up);
  for (const PipelineSetup& other : search.with_checkpoints()) {
    add(Change::kCheckpoints, other, options.least_speed_up);
  }
  for (const PipelineSetup& other : search.with_schedules()) {
    add(Change::kSchedule, other, options.least_speed_up);
  }
  double best = 1;
  for (const Advice& advice_item : advice) best = std::max(best, advice_item.speed_up);
  const PipelineSetup all = search.with_all();
  if (changes(all, setup) > 1) {
    add(Change::kSeveral, all, std::max(options.least_speed_up, best * 1.005));
  }
  std::stable_sort(advice.begin(), advice.end(),
                   [](const Advice& a, const Advice& b) { return a.speed_up > b.speed_up; });
  return advice;
}

}  // namespace gpipe::diagnosis
