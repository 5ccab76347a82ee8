#include "balance/choose/plan_derivation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "balance/costs/profile_checks.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/action.h"

namespace gpipe::balance {
namespace {

// A stage as this derivation sees it: sums over its layers, counted by hand.
struct Stage {
  size_t first = 0;
  size_t past = 0;
  double forward = 0;
  double whole = 0;    // seconds of a whole backward (B)
  double inputs = 0;   // seconds of a backward's input half (I)
  double weights = 0;  // seconds of a backward's weight half (W)
  double state = 0;    // bytes of parameters, of what the optimizer keeps for them, and of buffers
  double workspace = 0;
  double arrives = 0;  // bytes that arrive for a micro-batch
  double leaves = 0;   // bytes that other stages or the caller get of a micro-batch
  double kept = 0;     // bytes of activations of a micro-batch
  double waits = 0;    // bytes kept between the halves of a backward
};

class Derivation {
 public:
  Derivation(const PipelinePlan& plan, const Profile& profile, const std::vector<double>& sizes,
             const ExplainOptions& machine)
      : plan_(plan), profile_(profile), sizes_(sizes), machine_(machine) {
    if (static_cast<int64_t>(sizes.size()) != plan.schedule.micro_batches()) {
      throw std::invalid_argument("check_plan: " + std::to_string(sizes.size()) +
                                  " sizes were given for " +
                                  std::to_string(plan.schedule.micro_batches()) + " micro-batches");
    }
    for (const double size : sizes) {
      if (std::isfinite(size) && size > 0) continue;
      throw std::invalid_argument("check_plan: a micro-batch of " + absl::StrCat(size) +
                                  " of the profile's rows: give a finite number above 0");
    }
    check_profile(profile, "check_plan: the profile's ");
    const auto in_all = static_cast<int64_t>(profile.layers.size());
    size_t layer = 0;
    for (const int64_t layers : plan.balance) {
      if (layers < 1 || layers > in_all - static_cast<int64_t>(layer)) {
        throw std::invalid_argument("check_plan: the balance has " + std::to_string(layers) +
                                    " layers where " +
                                    std::to_string(in_all - static_cast<int64_t>(layer)) +
                                    " are left of the profile's " + std::to_string(in_all));
      }
      stages_.emplace_back();
      stages_.back().first = layer;
      layer += static_cast<size_t>(layers);
      stages_.back().past = layer;
    }
    if (layer != profile.layers.size()) {
      throw std::invalid_argument("check_plan: the balance sums up to " + std::to_string(layer) +
                                  ", but the profile has " + std::to_string(profile.layers.size()) +
                                  " layers");
    }
    const bool measured = std::all_of(
        profile.layers.begin(), profile.layers.end(),
        [](const LayerProfile& layer_profile) { return layer_profile.split.has_value(); });
    for (size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = stages_[s];
      for (size_t k = stage.first; k < stage.past; ++k) {
        const LayerProfile& layer_profile = profile.layers[k];
        stage.forward += layer_profile.forward;
        stage.whole += layer_profile.backward;
        const SplitBackward halves = split_backward(layer_profile);
        stage.inputs += halves.input;
        stage.weights += halves.weight;
        stage.waits += static_cast<double>(halves.waiting);
        stage.state += static_cast<double>(layer_profile.parameters) * machine.param_scale +
                       static_cast<double>(layer_profile.buffers);
        stage.workspace = std::max(stage.workspace, static_cast<double>(layer_profile.workspace));
        stage.kept += static_cast<double>(layer_profile.kept);
      }
      const int64_t before = s == 0 ? profile.input : profile.layers[stage.first - 1].output;
      stage.arrives = static_cast<double>(before);
      stage.leaves = output(s);
      for (const SkipProfile& skip : profile.skips) {
        const auto bytes = static_cast<double>(skip.bytes);
        const bool stays = stage_of(skip.to) == stage_of(skip.from);
        if (!stays && stage_of(skip.to) == s) stage.arrives += bytes;
        if (!stays && stage_of(skip.from) == s) stage.leaves += bytes;
      }
      if (measured && s == 0) {
        stage.inputs = 0;
        stage.weights = stage.whole;
      }
      if (!measured || s == 0) stage.waits = stage.arrives + stage.kept;
    }
    find_recomputed();
    find_moved();
  }

  // Runs the workers' lists of actions; returns false if they deadlock.
  bool run() {
    const auto& table = plan_.schedule.table();
    const auto cells = stages_.size() * sizes_.size();
    std::vector<double> forward_end(cells, -1), backward_end(cells, -1);
    std::vector<size_t> next(table.size());
    // [worker] When it has computed, and when it is free, also of what must go to the host.
    std::vector<double> computed(table.size()), free(table.size());
    const auto cell = [&](size_t stage, int32_t m) {
      return stage * sizes_.size() + static_cast<size_t>(m);
    };
    // The time at which a value from stage `from` arrives. Sets `ready` to false if the value is
    // not made yet.
    const auto arrival = [&](const std::vector<double>& ends, size_t from, size_t to, int32_t m,
                             double bytes, bool& ready) {
      const double end = ends[cell(from, m)];
      if (end < 0) ready = false;
      return end + (worker_of(from) == worker_of(to) ? 0.0 : link(bytes * size(m)));
    };
    for (bool going = true; going;) {
      going = false;
      for (size_t w = 0; w < table.size(); ++w) {
        while (next[w] < table[w].size()) {
          const Action& action = table[w][next[w]];
          if (!computes(action.kind)) {
            free[w] = move(action, w, free[w]);
            ++next[w];
            going = true;
            continue;
          }
          const auto s = static_cast<size_t>(action.stage);
          const int32_t m = action.micro_batch;
          const bool is_forward = action.kind == ActionKind::kForward;
          const bool is_weights = action.kind == ActionKind::kWeightGradient;
          double start = computed[w];
          bool ready = true;
          if (is_forward && s > 0) {
            start = std::max(start, arrival(forward_end, s - 1, s, m, output(s - 1), ready));
          } else if (!is_forward && !is_weights && s + 1 < stages_.size()) {
            start = std::max(start, arrival(backward_end, s + 1, s, m, output(s), ready));
          }
          for (const SkipProfile& skip : profile_.skips) {
            const size_t from = stage_of(skip.from);
            const size_t to = stage_of(skip.to);
            const auto bytes = static_cast<double>(skip.bytes);
            if (from == to || is_weights) continue;
            if (is_forward && to == s) {
              start = std::max(start, arrival(forward_end, from, s, m, bytes, ready));
            } else if (!is_forward && from == s) {
              start = std::max(start, arrival(backward_end, to, s, m, bytes, ready));
            }
          }
          if (!is_forward && forward_end[cell(s, m)] < 0) ready = false;
          if (is_weights && backward_end[cell(s, m)] < 0) ready = false;
          if (!ready) break;
          offload_wait_ += std::max(free[w] - start, 0.0);
          start = after_reload(action, std::max(start, free[w]));
          const double end = start + cost(action);
          note_copy(w, next[w], end);
          if (is_forward) forward_end[cell(s, m)] = end;
          if (!is_forward && !is_weights) backward_end[cell(s, m)] = end;
          spans_.push_back({start, end});  // also an empty span, as the step may end with it
          computed[w] = free[w] = end;
          ++next[w];
          going = true;
        }
      }
    }
    for (size_t w = 0; w < table.size(); ++w) {
      if (next[w] < table[w].size()) return false;
    }
    return true;
  }

  // Seconds of the step: the spans in which workers compute, stretched if there are fewer cores.
  double step() const {
    std::map<double, int64_t> changes;  // change of the number of computing workers at a time
    for (const auto& [start, end] : spans_) {
      ++changes[start];
      --changes[end];
    }
    double result = 0;
    double last = 0;
    int64_t running = 0;
    for (const auto& [time, change] : changes) {
      const bool few = machine_.cores > 0 && running > machine_.cores;
      const double shared =
          few ? static_cast<double>(running) / static_cast<double>(machine_.cores) : 1.0;
      result += (time - last) * shared * (running > 1 ? machine_.contention : 1.0);
      running += change;
      last = time;
    }
    return result;
  }

  // The most bytes that the worker's device holds at a time.
  int64_t live(size_t worker) const {
    std::map<Cell, double> held;
    std::map<Cell, Action> parts;  // the last part of each cell
    double sum = 0;                // sum of `held`, without what is on the host
    double fixed = 0;
    double workspace = 0;
    double most = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (worker_of(s) == static_cast<int64_t>(worker)) fixed += stages_[s].state;
    }
    const auto note = [&](double more) { most = std::max(most, sum + more); };
    for (const Action& action : plan_.schedule.table()[worker]) {
      const Stage& stage = stages_[static_cast<size_t>(action.stage)];
      const double rows = size(action.micro_batch);
      const bool again = recomputed(action);
      const auto hold = [&](double bytes) {
        double& cell = held[{action.stage, action.micro_batch}];
        sum += bytes - cell;
        cell = bytes;
      };
      workspace = std::max(workspace, rows * stage.workspace);
      if (!moved_.empty() && computes(action.kind)) {
        parts[{action.stage, action.micro_batch}] = action;
      }
      switch (action.kind) {
        case ActionKind::kForward:
          hold(rows * (stage.arrives + (again ? 0.0 : stage.kept)));
          note(0);
          break;
        case ActionKind::kBackward:
          note(again ? rows * stage.kept : 0.0);
          hold(0);
          break;
        case ActionKind::kInputGradient:
          note(again ? rows * stage.kept : 0.0);
          hold(rows * stage.waits);
          note(0);
          break;
        case ActionKind::kWeightGradient:
          hold(0);
          break;
        case ActionKind::kOffload:
        case ActionKind::kReload: {
          const double moves = goes(parts[{action.stage, action.micro_batch}]);
          sum += action.kind == ActionKind::kOffload ? -moves : moves;
          note(0);
          break;
        }
      }
    }
    return std::llround(fixed + workspace + most);
  }

  double reload_wait() const { return reload_wait_; }
  double offload_wait() const { return offload_wait_; }

 private:
  using Cell = std::pair<int32_t, int32_t>;  // stage, micro-batch

  // The bytes of a cell that an offload behind its part takes: what the part's operators made, but
  // not what other stages or the caller got; of a cell that recomputes, what other stages sent.
  double goes(const Action& part) const {
    const Stage& stage = stages_[static_cast<size_t>(part.stage)];
    double bytes = 0;
    if (part.kind == ActionKind::kInputGradient) {
      bytes = stage.waits - stage.arrives - stage.leaves;
    } else if (!recomputed(part)) {
      bytes = stage.kept - stage.leaves;
    } else if (part.stage > 0) {
      bytes = stage.arrives;
    }
    return size(part.micro_batch) * std::max(bytes, 0.0);
  }
  double copy(const Action& part) const {
    return machine_.host_bandwidth > 0 ? goes(part) / machine_.host_bandwidth : 0.0;
  }

  // Finds the parts behind which a cell's memory goes.
  void find_moved() {
    const auto& table = plan_.schedule.table();
    for (size_t w = 0; w < table.size(); ++w) {
      std::map<Cell, size_t> parts;
      for (size_t k = 0; k < table[w].size(); ++k) {
        const Action& action = table[w][k];
        const Cell cell = {action.stage, action.micro_batch};
        if (action.kind == ActionKind::kOffload) moved_.insert({w, parts.at(cell)});
        if (computes(action.kind)) parts[cell] = k;
      }
    }
    out_free_.assign(table.size(), 0);
    back_free_.assign(table.size(), 0);
  }

  // When an offload or a reload that begins at `start` has ended for its worker.
  double move(const Action& action, size_t w, double start) {
    Copies& copies = copies_[{action.stage, action.micro_batch}];
    if (action.kind == ActionKind::kOffload) return std::max(start, copies.out);
    back_free_[w] = std::max(back_free_[w], start) + copies.seconds;
    copies.back = back_free_[w];
    return start;
  }
  // When a part begins that could at `start`, but for what it needs of the host.
  double after_reload(const Action& part, double start) {
    if (moved_.empty()) return start;
    const double back = std::exchange(copies_[{part.stage, part.micro_batch}].back, 0.0);
    reload_wait_ += std::max(back - start, 0.0);
    return std::max(start, back);
  }
  // Notes the copy to the host behind the worker's part number k, if its memory goes.
  void note_copy(size_t w, size_t k, double end) {
    if (moved_.count({w, k}) == 0) return;
    const Action& part = plan_.schedule.table()[w][k];
    Copies& copies = copies_[{part.stage, part.micro_batch}];
    copies.seconds = copy(part);
    copies.out = out_free_[w] = std::max(out_free_[w], end) + copies.seconds;
  }

  size_t stage_of(int64_t layer) const {
    size_t s = 0;
    while (static_cast<size_t>(layer) >= stages_[s].past) ++s;
    return s;
  }
  int64_t worker_of(size_t stage) const {
    return plan_.schedule.worker_of(static_cast<int64_t>(stage));
  }
  double size(int32_t m) const { return sizes_[static_cast<size_t>(m)]; }
  double output(size_t stage) const {
    return static_cast<double>(profile_.layers[stages_[stage].past - 1].output);
  }
  double link(double bytes) const {
    return machine_.latency + (machine_.bandwidth > 0 ? bytes / machine_.bandwidth : 0.0);
  }

  void find_recomputed() {
    recomputed_.assign(stages_.size(), std::vector<bool>(sizes_.size()));
    for (const std::vector<Action>& actions : plan_.schedule.table()) {
      for (size_t k = 0; k < actions.size(); ++k) {
        const Action& action = actions[k];
        if (action.kind != ActionKind::kForward) continue;
        const auto s = static_cast<size_t>(action.stage);
        size_t next = k + 1;  // what moves other cells' memory does not count
        while (next < actions.size() && !computes(actions[next].kind) &&
               Cell(actions[next].stage, actions[next].micro_batch) !=
                   Cell(action.stage, action.micro_batch)) {
          ++next;
        }
        const bool at_once = next < actions.size() && computes(actions[next].kind) &&
                             actions[next].stage == action.stage &&
                             actions[next].micro_batch == action.micro_batch;
        const Checkpoint mode = plan_.checkpoints[s];
        recomputed_[s][static_cast<size_t>(action.micro_batch)] =
            mode == Checkpoint::kAlways || (mode == Checkpoint::kExceptLast && !at_once);
      }
    }
  }
  bool recomputed(const Action& action) const {
    return recomputed_[static_cast<size_t>(action.stage)][static_cast<size_t>(action.micro_batch)];
  }

  double cost(const Action& action) const {
    const Stage& stage = stages_[static_cast<size_t>(action.stage)];
    const double again = recomputed(action) ? stage.forward : 0.0;
    double seconds = 0;
    switch (action.kind) {
      case ActionKind::kForward:
        seconds = stage.forward;
        break;
      case ActionKind::kBackward:
        seconds = stage.whole + again;
        break;
      case ActionKind::kInputGradient:
        seconds = stage.inputs + again;
        break;
      case ActionKind::kWeightGradient:
        seconds = stage.weights;
        break;
      case ActionKind::kOffload:
      case ActionKind::kReload:
        return 0;
    }
    return machine_.overhead + size(action.micro_batch) * seconds;
  }

  const PipelinePlan& plan_;
  const Profile& profile_;
  const std::vector<double>& sizes_;
  const ExplainOptions& machine_;
  std::vector<Stage> stages_;
  std::vector<std::vector<bool>> recomputed_;  // [stage][micro-batch]
  std::vector<std::pair<double, double>> spans_;

  // The copies of a cell that goes to the host.
  struct Copies {
    double seconds = 0;
    double out = 0;   // when its memory is on the host
    double back = 0;  // when it is back
  };
  std::set<std::pair<size_t, size_t>> moved_;  // worker, index of the part before an offload
  std::map<Cell, Copies> copies_;
  std::vector<double> out_free_, back_free_;  // [worker] when its link copies the next one
  double reload_wait_ = 0;
  double offload_wait_ = 0;
};

}  // namespace

PlanDerivation derive_plan(const PipelinePlan& plan, const Profile& profile,
                           const std::vector<double>& sizes, const ExplainOptions& machine) {
  Derivation derivation(plan, profile, sizes, machine);  // checks the profile, too
  check_finite_step(profile, sizes, machine, "check_plan: ");
  PlanDerivation result;
  result.deadlock_free = derivation.run();
  result.step = result.deadlock_free ? derivation.step() : 0.0;
  result.reload_wait = derivation.reload_wait();
  result.offload_wait = derivation.offload_wait();
  for (size_t d = 0; d < plan.devices.size(); ++d) result.live.push_back(derivation.live(d));
  return result;
}

}  // namespace gpipe::balance
