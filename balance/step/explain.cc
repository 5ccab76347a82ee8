#include "balance/step/explain.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_format.h"
#include "balance/costs/profile_checks.h"
#include "balance/cut/move_cuts.h"
#include "balance/cut/pieces.h"
#include "balance/step/cut_costs.h"
#include "balance/step/recomputed_cells.h"
#include "balance/step/step_model.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/follows_at_once.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {
namespace {

// The most simulations of a search. It ends earlier for large schedules, and from a good start it
// mostly needs fewer.
constexpr int64_t kMostSimulations = 2000;
constexpr int64_t kMostCells = 4'000'000;  // stages x micro-batches, over all simulations
// A cut counts as faster only by this share, so that rounding does not decide.
constexpr double kFaster = 1e-9;

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument("explain: " + text); }

std::string text(double value) { return absl::StrFormat("%g", value); }

// Checks that there is a value above 0 for each of `expected` things, or no value at all.
void check_each(const std::string& name, const std::vector<double>& values, int64_t expected,
                const char* thing) {
  if (values.empty()) return;
  if (static_cast<int64_t>(values.size()) != expected) {
    fail(name + " has " + std::to_string(values.size()) + " values, expected " +
         std::to_string(expected) + ", one for each " + thing);
  }
  for (size_t j = 0; j < values.size(); ++j) {
    if (std::isfinite(values[j]) && values[j] > 0) continue;
    fail(name + "[" + std::to_string(j) + "] is " + text(values[j]) +
         ", expected a finite number above 0");
  }
}

void check_options(const ExplainOptions& options, int64_t partitions) {
  if (options.chunks < 1) {
    fail("chunks is " + std::to_string(options.chunks) + ", expected at least 1");
  }
  check_machine(options, "explain: ");
  check_each("slowness", options.slowness, partitions, "partition");
  check_each("micro_batch_sizes", options.micro_batch_sizes, options.chunks, "micro-batch");
  (void)checkpoint_modes(options, partitions);
}

void check_finite(const Profile& profile, const ExplainOptions& options,
                  const std::string& prefix) {
  std::vector<double> sizes = options.micro_batch_sizes;
  // If no sizes are given, all rows count as one micro-batch.
  if (sizes.empty()) sizes = {static_cast<double>(options.chunks)};
  check_finite_step(profile, sizes, options, prefix);
}

void check_balance(const std::vector<int64_t>& balance, int64_t layers) {
  if (balance.empty()) fail("balance is empty, expected the layers of each partition");
  int64_t left = layers;
  for (size_t j = 0; j < balance.size(); ++j) {
    if (balance[j] < 1) {
      fail("balance[" + std::to_string(j) + "] is " + std::to_string(balance[j]) +
           ", expected at least one layer for each partition: leave it out, or add a "
           "torch::nn::Identity for it to have");
    }
    if (balance[j] > left) {
      fail("balance sums up to more than the profile's " + std::to_string(layers) +
           " layers; let it sum up to as many");
    }
    left -= balance[j];
  }
  if (left > 0) {
    fail("balance sums up to " + std::to_string(layers - left) + ", but the profile has " +
         std::to_string(layers) + " layers; let it sum up to as many");
  }
}

// The schedule and the machine for a number of partitions: the part of a prediction that does not
// depend on the cut.
class StepPredictor {
 public:
  StepPredictor(const Profile& profile, int64_t partitions, const ExplainOptions& options)
      : profile_(profile),
        options_(options),
        schedule_(options.schedule ? options.schedule(partitions, options.chunks)
                                   : Schedule::one_f_one_b(partitions, options.chunks)) {
    if (schedule_.stages() != partitions || schedule_.micro_batches() != options.chunks) {
      fail("the schedule is for " + std::to_string(schedule_.stages()) + " stages and " +
           std::to_string(schedule_.micro_batches()) + " micro-batches, expected " +
           std::to_string(partitions) + " and " + std::to_string(options.chunks));
    }
    internal::check_whole_step(schedule_, "explain: ");
    splits_ = has_split_backwards();
    recomputed_ = recomputed_cells(schedule_, checkpoint_modes(options, partitions));
    micro_batches_.resize(static_cast<size_t>(options.chunks));
    for (size_t m = 0; m < options.micro_batch_sizes.size(); ++m) {
      micro_batches_[m].size = options.micro_batch_sizes[m];
    }
  }

  int64_t partitions() const { return schedule_.stages(); }
  int64_t cells() const { return schedule_.stages() * schedule_.micro_batches(); }

  // The sum of the sizes of all micro-batches.
  double sizes() const {
    if (options_.micro_batch_sizes.empty()) return static_cast<double>(options_.chunks);
    return std::accumulate(options_.micro_batch_sizes.begin(), options_.micro_batch_sizes.end(),
                           0.0);
  }

  // The share of the mini-batch that the stage recomputes, in micro-batches of size 1.
  double recomputed(int64_t stage) const {
    const std::vector<bool>& of_stage = recomputed_[static_cast<size_t>(stage)];
    double sum = 0;
    for (size_t m = 0; m < of_stage.size(); ++m) sum += of_stage[m] ? micro_batches_[m].size : 0.0;
    return sum / static_cast<double>(of_stage.size());
  }

  double slowness(int64_t stage) const {
    return options_.slowness.empty() ? 1.0 : options_.slowness[static_cast<size_t>(stage)];
  }

  double transfer(double bytes) const { return options_.seconds(bytes); }

  StepModel model(const std::vector<int64_t>& balance) const {
    CutCosts costs = cut_costs(profile_, balance);
    for (size_t j = 0; j < costs.stages.size(); ++j) {
      StageCosts& stage = costs.stages[j];
      const double slowness = this->slowness(static_cast<int64_t>(j));
      stage.forward *= slowness;
      stage.recompute *= slowness;
      stage.backward *= slowness;
      stage.input_gradient *= slowness;
      stage.weight_gradient *= slowness;
    }
    return {schedule_, recomputed_, {std::move(costs)}, micro_batches_, options_};
  }

  bool splits() const { return splits_; }

 private:
  bool has_split_backwards() const {
    for (const std::vector<Action>& actions : schedule_.table()) {
      for (const Action& action : actions) {
        if (action.kind == ActionKind::kInputGradient) return true;
      }
    }
    return false;
  }

  const Profile& profile_;
  const ExplainOptions& options_;
  Schedule schedule_;
  std::vector<std::vector<bool>> recomputed_;  // [stage][micro-batch]
  std::vector<MicroBatch> micro_batches_;
  bool splits_ = false;
};

// The cuts from which searches begin.
std::vector<std::vector<int64_t>> starts(const Profile& profile, const StepPredictor& predictor,
                                         const ExplainOptions& options) {
  const std::vector<Checkpoint> modes = checkpoint_modes(options, predictor.partitions());
  const bool recompute = std::any_of(modes.begin(), modes.end(),
                                     [](Checkpoint mode) { return mode != Checkpoint::kNever; });
  const std::vector<double> costs = whole_costs(profile, recompute);
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  double forward = 0;
  for (const LayerProfile& layer : profile.layers) forward += layer.forward;

  PartitionOptions even;
  even.keep_together = options.keep_together;
  for (int64_t j = 0; j < predictor.partitions(); ++j) {
    // A partition that recomputes less is faster, so its slowness is reduced.
    const bool full = !recompute || all <= 0;
    const double spared = full ? 0.0 : (1 - predictor.recomputed(j)) * forward;
    const double share = all > 0 ? (all - spared) / all : 1.0;
    even.slowness.push_back(predictor.slowness(j) * share);
  }
  std::vector<std::vector<int64_t>> result = {partition(costs, predictor.partitions(), even)};
  if (options.bandwidth > 0) {
    for (size_t i = 0; i + 1 < profile.layers.size(); ++i) {
      even.send_costs.push_back(2 *
                                predictor.transfer(static_cast<double>(profile.layers[i].output)));
    }
    even.receive_costs = even.send_costs;
    result.push_back(partition(costs, predictor.partitions(), even));
  }
  return result;
}

// The fastest cut that moves reach from any of the starts.
std::vector<int64_t> fastest(const StepPredictor& predictor, const Pieces& pieces,
                             const std::vector<std::vector<int64_t>>& starts) {
  int64_t left = std::min(kMostSimulations, kMostCells / predictor.cells());
  const auto step = [&](const std::vector<int64_t>& balance) {
    --left;
    return predictor.model(balance).run().makespan;
  };
  std::vector<int64_t> best;
  double best_step = 0;
  for (const std::vector<int64_t>& start : starts) {
    double least = step(start);
    CutMoves moves;
    moves.distance = first_distance(pieces.places().back(), predictor.partitions());
    moves.goes_on = [&] { return left > 0; };
    moves.is_better = [&](const std::vector<int64_t>& balance) {
      const double time = step(balance);
      if (!(time < least * (1 - kFaster))) return false;
      least = time;
      return true;
    };
    std::vector<int64_t> found = move_cuts(start, pieces, moves);
    if (!best.empty() && !(least < best_step * (1 - kFaster))) continue;
    best = std::move(found);
    best_step = least;
  }
  return best;
}

}  // namespace

std::vector<int64_t> Explanation::balance() const {
  std::vector<int64_t> result;
  for (const PartitionExplanation& partition : partitions) {
    result.push_back(partition.layers.last - partition.layers.first + 1);
  }
  return result;
}

std::vector<Checkpoint> checkpoint_modes(const ExplainOptions& options, int64_t partitions) {
  const auto given = static_cast<int64_t>(options.partition_checkpoints.size());
  if (partitions < 1 || partitions > Schedule::kMostCells) {
    fail("got " + std::to_string(partitions) + " partitions, expected 1 to " +
         std::to_string(Schedule::kMostCells));
  }
  if (given == 0) {
    return std::vector<Checkpoint>(static_cast<size_t>(partitions), options.checkpoint);
  }
  if (given != partitions) {
    fail("partition_checkpoints has " + std::to_string(given) + " modes, expected " +
         std::to_string(partitions) + ", one for each partition");
  }
  return options.partition_checkpoints;
}

void check_machine(const ExplainOptions& machine, const std::string& prefix) {
  const auto refuse = [&](const std::string& what) { throw std::invalid_argument(prefix + what); };
  const auto check_at_least = [&](const char* name, double value, double least) {
    if (std::isfinite(value) && value >= least) return;
    refuse(std::string(name) + " is " + text(value) + ", expected a finite number of at least " +
           text(least));
  };
  if (machine.cores < 0) {
    refuse("cores is " + std::to_string(machine.cores) + ", expected at least 0");
  }
  check_at_least("bandwidth", machine.bandwidth, 0);
  check_at_least("latency", machine.latency, 0);
  check_at_least("host_bandwidth", machine.host_bandwidth, 0);
  check_at_least("overhead", machine.overhead, 0);
  check_at_least("contention", machine.contention, 1);
  check_at_least("param_scale", machine.param_scale, 0);
  if (machine.param_scale > kMostParamScale) {
    refuse("param_scale is " + text(machine.param_scale) + ", expected at most " +
           text(kMostParamScale));
  }
}

void check_finite_step(const Profile& profile, const std::vector<double>& sizes,
                       const ExplainOptions& machine, const std::string& prefix) {
  // Sums of times up to this are finite, too.
  constexpr double kLongest = 1e300;
  const auto micro_batches = static_cast<double>(sizes.size());
  const auto layers = static_cast<double>(profile.layers.size());
  const double rows = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  double work = 0;
  double bytes = 0;  // bytes that cross cuts, in both directions
  for (const LayerProfile& layer : profile.layers) {
    const SplitBackward halves = split_backward(layer);
    work += 2 * layer.forward + layer.backward + halves.input + halves.weight;
    bytes += 2 * static_cast<double>(layer.output);
  }
  for (const SkipProfile& skip : profile.skips) bytes += 2 * static_cast<double>(skip.bytes);
  double slowest = 1;
  for (const double slowness : machine.slowness) slowest = std::max(slowest, slowness);
  const double transfers = 2 * (layers + static_cast<double>(profile.skips.size()));
  const double sent = machine.bandwidth > 0 ? rows * bytes / machine.bandwidth : 0.0;
  const double once = rows * work * slowest + sent +
                      micro_batches * (transfers * machine.latency + 4 * layers * machine.overhead);
  // A core is shared by at most as many workers as there are layers.
  if (machine.host_bandwidth > 0) {
    double moved = rows * static_cast<double>(profile.input);  // bytes to the host and back
    for (const LayerProfile& layer : profile.layers) {
      moved += 2 * rows * static_cast<double>(layer.kept + layer.output);
    }
    if (!(moved / machine.host_bandwidth <= kLongest)) {
      throw std::invalid_argument(prefix +
                                  "copies to the host are too long to be added up, with a "
                                  "host_bandwidth of " +
                                  text(machine.host_bandwidth) +
                                  " bytes/s; give a faster link, or 0: copies take no time");
    }
  }
  if (once * layers * machine.contention <= kLongest) return;
  throw std::invalid_argument(
      prefix + "the times of a step are too long to be added up: layers take " + text(rows * work) +
      " s, transfers " + text(sent) + " s with a bandwidth of " + text(machine.bandwidth) +
      " bytes/s, a latency of " + text(machine.latency) + " s and an overhead of " +
      text(machine.overhead) +
      " s; give a faster link (a bandwidth of 0: only the latency counts) or a profile of shorter "
      "times");
}

namespace {

StepPredictor checked_predictor(const Profile& profile, const std::vector<int64_t>& balance,
                                const ExplainOptions& options) {
  check_profile(profile, "explain: the profile cannot have been measured: ");
  check_balance(balance, static_cast<int64_t>(profile.layers.size()));
  const auto partitions = static_cast<int64_t>(balance.size());
  check_options(options, partitions);
  check_finite(profile, options, "explain: ");
  return StepPredictor(profile, partitions, options);
}

}  // namespace

Explanation explain(const Profile& profile, const std::vector<int64_t>& balance,
                    const ExplainOptions& options) {
  const StepPredictor predictor = checked_predictor(profile, balance, options);
  const int64_t partitions = predictor.partitions();
  const StepModel model = predictor.model(balance);
  const Simulation simulation = model.simulate();
  const SharedRun run = share_cores(simulation, model.machine.cores, model.machine.contention);

  Explanation result;
  result.device = profile.device;
  result.autocast = profile.autocast.value_or("");
  result.deferred_batch_norm = profile.deferred_batch_norm;
  result.batch_rows = profile.batch_rows;
  result.chunks = options.chunks;
  result.cores = options.cores;
  result.step = run.makespan;
  for (const double wait : simulation.reload_waits) result.reload_wait += wait;
  std::vector<double> work;  // seconds of each partition in a step
  for (int64_t j = 0; j < partitions; ++j) {
    const StageCosts& stage = model.costs.front().stages[static_cast<size_t>(j)];
    PartitionExplanation partition;
    partition.layers = stage.layers;
    partition.forward = stage.forward;
    partition.backward = stage.backward;
    partition.input_gradient = stage.input_gradient;
    partition.weight_gradient = stage.weight_gradient;
    // Throws if the bytes below would overflow.
    partition.memory =
        model.stage_memory(j, options.param_scale).bytes("explain: partition " + std::to_string(j));
    partition.fixed = std::llround(static_cast<double>(stage.parameters) * options.param_scale) +
                      stage.buffers + stage.workspace;
    partition.received = stage.received;
    partition.kept = stage.kept;
    partition.waiting = stage.waiting;
    partition.recompute = stage.forward * predictor.recomputed(j);
    partition.parameters = stage.parameters;
    partition.sent = stage.sent;
    const double busy = run.busy[static_cast<size_t>(model.schedule.worker_of(j))];
    partition.busy = run.makespan > 0 ? busy / run.makespan : 0.0;
    result.partitions.push_back(partition);
    const double rows = predictor.sizes() / static_cast<double>(options.chunks);
    work.push_back(rows * (partition.forward + partition.backward) + partition.recompute);
  }
  result.binding = std::max_element(work.begin(), work.end()) - work.begin();
  for (size_t worker = 0; worker < run.busy.size(); ++worker) {
    const double busy = run.makespan > 0 ? run.busy[worker] / run.makespan : 0.0;
    const StepMemory memory =
        model.worker_memory(static_cast<int64_t>(worker), options.param_scale);
    result.workers.push_back({memory.bytes("explain: worker " + std::to_string(worker)), busy});
  }
  result.splits = predictor.splits();
  result.halves_measured = halves_measured(profile);
  for (const double busy : run.busy) {
    if (run.makespan <= 0) break;
    result.bubble += (1 - busy / run.makespan) / static_cast<double>(run.busy.size());
  }
  for (const LayerProfile& layer : profile.layers) {
    result.one_device += (layer.forward + layer.backward) * predictor.sizes();
  }
  result.speed_up = result.step > 0 ? result.one_device / result.step : 0.0;
  return result;
}

std::vector<Schedule> offload_choices(const Profile& profile, const std::vector<int64_t>& balance,
                                      const ExplainOptions& options, double more_time,
                                      const std::vector<int64_t>& most) {
  StepModel model = checked_predictor(profile, balance, options).model(balance);
  if (options.host_bandwidth == 0) return {};
  model.schedule = without_offloads(model.schedule);
  // What no offload moves decides, too, which worker needs the most memory.
  std::vector<double> beside = model.simulate().peak;
  for (size_t worker = 0; worker < beside.size(); ++worker) {
    const StepMemory memory =
        model.worker_memory(static_cast<int64_t>(worker), options.param_scale);
    const int64_t bytes = memory.bytes("offloads: worker " + std::to_string(worker));
    beside[worker] = static_cast<double>(bytes) - beside[worker];
  }
  return gpipe::internal::offload_choices(model.schedule, model.costs.front().routes,
                                          model.simulate_options(), more_time, most,
                                          std::move(beside));
}

Schedule offloaded_schedule(const Profile& profile, const std::vector<int64_t>& balance,
                            const ExplainOptions& options, double more_time,
                            const std::vector<int64_t>& most) {
  std::vector<Schedule> choices = offload_choices(profile, balance, options, more_time, most);
  if (!choices.empty()) return std::move(choices.front());
  return without_offloads(checked_predictor(profile, balance, options).model(balance).schedule);
}

std::vector<int64_t> best_balance(const Profile& profile, int64_t partitions,
                                  const ExplainOptions& options) {
  check_profile(profile, "best_balance: the profile cannot have been measured: ");
  // Checks `partitions` before anything of that size is allocated.
  if (partitions < 1 || partitions > static_cast<int64_t>(profile.layers.size())) {
    partition(whole_costs(profile, /*recompute=*/true), partitions);  // throws
  }
  check_options(options, partitions);
  check_finite(profile, options, "best_balance: ");
  const StepPredictor predictor(profile, partitions, options);
  const Pieces pieces(static_cast<int64_t>(profile.layers.size()), options.keep_together,
                      "best_balance: ");
  return fastest(predictor, pieces, starts(profile, predictor, options));
}

}  // namespace gpipe::balance
