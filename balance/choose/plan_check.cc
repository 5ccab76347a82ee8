#include "balance/choose/plan_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "balance/choose/plan_derivation.h"
#include "balance/choose/profiled_schedule.h"
#include "balance/costs/profile_checks.h"
#include "balance/memory/caching_allocator.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/search/search_work.h"

namespace gpipe::balance {
namespace {

// The relative difference of two sums of the same numbers is below this.
constexpr double kRounding = 1e-9;

std::vector<int64_t> live_of_trace(const MemoryTrace& trace, size_t devices) {
  std::vector<int64_t> now(devices), most(devices);
  for (const MemoryEvent& event : trace.events) {
    const MemoryBlock& block = trace.blocks[static_cast<size_t>(event.block)];
    const auto device = static_cast<size_t>(block.device);
    if (device >= devices) continue;
    now[device] += event.free ? -block.bytes : block.bytes;
    most[device] = std::max(most[device], now[device]);
  }
  return most;
}

// Compares the fields of the plan with the profile and with what was derived, and notes each
// difference under the field's name.
class Claims {
 public:
  Claims(const PipelinePlan& plan, const Profile& profile, const std::vector<double>& sizes,
         const ExplainOptions& machine, PlanProof& proof)
      : plan_(plan), profile_(profile), sizes_(sizes), machine_(machine), proof_(proof) {}

  void check_names() {
    not_checked("model", "a name for people");
    if (plan_.profiled_on != profile_.device) {
      problem("profiled_on",
              "the profile is of " + profile_.device + ", the plan says " + plan_.profiled_on);
    }
    if (!profile_.autocast) {
      not_checked("autocast", "the profile does not say under which guard it was made");
    } else if (plan_.autocast != *profile_.autocast) {
      problem("autocast", "the profile was made " + under_autocast(*profile_.autocast) +
                              ", the plan " + under_autocast(plan_.autocast));
    }
    if (plan_.deferred_batch_norm != profile_.deferred_batch_norm) {
      problem("deferred_batch_norm", "batch norms are deferred in one of profile and plan alone");
    }
    if (!profile_.shared_inputs) {
      not_checked("shared_inputs", "the profile does not say which it was made with");
    } else if (set_of(*profile_.shared_inputs) != set_of(plan_.shared_inputs)) {
      problem("shared_inputs", "the profile was made with others than the plan has");
    }
  }

  // Compares rows and chunks with the micro-batches of the profile.
  void check_chunking() {
    const std::vector<int64_t> rows = micro_batch_sizes(plan_.rows, plan_.chunks);
    const std::string chunking = std::to_string(plan_.rows) + " rows in " +
                                 std::to_string(plan_.chunks) + " chunks make micro-batches of ";
    if (profile_.batch_rows != rows.front()) {
      problem("rows, chunks", chunking + std::to_string(rows.front()) +
                                  " rows, the profile's have " +
                                  std::to_string(profile_.batch_rows));
    }
    for (size_t m = 0; m < sizes_.size(); ++m) {
      const double size = static_cast<double>(rows[m]) / static_cast<double>(rows.front());
      if (std::abs(size - sizes_[m]) <= kRounding) continue;
      problem("rows, chunks", chunking + absl::StrCat(size) +
                                  " of the first one's rows, micro-batch " + std::to_string(m) +
                                  " was given " + absl::StrCat(sizes_[m]));
    }
  }

  void check_balance() {
    std::set<int64_t> firsts;
    int64_t first = 0;
    for (const int64_t layers : plan_.balance) {
      firsts.insert(first);
      first += layers;
    }
    for (const LayerRange& range : machine_.keep_together) {
      const auto cut = firsts.upper_bound(range.first);
      if (cut == firsts.end() || *cut > range.last) continue;
      problem("balance", "it separates layer " + std::to_string(*cut) +
                             " from the one before, which must stay together");
    }
  }

  // The schedule's name matters: a mini-batch with fewer micro-batches gets the schedule of that
  // name.
  void check_schedule() {
    const std::string& name = plan_.schedule_name;
    if (!proof_.ascending && name != "gpipe") {
      problem("schedule", "gradients are not added up in 1F1B's order, as in all but gpipe");
    }
    if (name == "search") {
      not_checked("schedule_name", "a searched order has nothing to compare it with");
      return;
    }
    const int64_t devices = plan_.schedule.workers();
    // The name does not say what goes to the host.
    const Schedule table = without_offloads(plan_.schedule);
    try {
      const Schedule named = profiled_schedule(name, devices, plan_.schedule.stages() / devices,
                                               plan_.schedule.micro_batches(), profile_, machine_);
      if (named == table) return;
      if (is_searched(name) && named.placement() == plan_.schedule.placement()) {
        not_checked("schedule_name",
                    "a search made the table, and " + name + " finds another one here");
        return;
      }
      problem("schedule_name, schedule", "the schedule is not what " + name + " is here");
    } catch (const std::invalid_argument& error) {
      problem("schedule_name", error.what());
    }
  }

  void check_times() {
    if (!proof_.deadlock_free) {
      problem("schedule", "it deadlocks");
    } else if (differs(proof_.step, plan_.step)) {
      problem("step", "with this balance, checkpoints and schedule a step takes " +
                          absl::StrCat(proof_.step) + " s, the plan says " +
                          absl::StrCat(plan_.step));
    }
    if (plan_.step < proof_.lower_bound * (1 - kRounding)) {
      problem("step", absl::StrCat(plan_.step) + " s is below the lower bound of " +
                          absl::StrCat(proof_.lower_bound));
    }
    if (plan_.lower_bound > proof_.lower_bound * (1 + kRounding)) {
      problem("lower_bound", "it is " + absl::StrCat(proof_.lower_bound) +
                                 " s for these micro-batches, the plan says " +
                                 absl::StrCat(plan_.lower_bound) + " for any");
    }
    not_checked("lower_bound", "that no other number of micro-batches has a smaller one");
  }

  // `trace`: as in check_plan(); may be null.
  void check_memory(const MemoryTrace* trace) {
    not_checked("limit", "what a device has is as given");
    if (trace != nullptr) check_trace(*trace);
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      const PlannedDevice& device = plan_.devices[d];
      const int64_t live = trace != nullptr ? proof_.traced_live[d] : proof_.live[d];
      const auto field = [&](const char* name) {
        return "devices[" + std::to_string(d) + "]." + name;
      };
      const auto compare = [&](const char* name, int64_t derived, int64_t said, int64_t rounding) {
        if (std::abs(derived - said) <= rounding) return;
        problem(field(name), "with this balance, checkpoints and schedule device " +
                                 std::to_string(d) + " holds " + std::to_string(derived) +
                                 " bytes, the plan says " + std::to_string(said));
      };
      compare("live", live, device.live, trace != nullptr ? 0 : kRoundedBytes);
      if (device.predicted < 0) {
        not_checked(field("predicted"), "the plan does not say it");
      } else {
        compare("predicted", proof_.live[d], device.predicted, kRoundedBytes);
      }
      check_reserved(field("reserved"), trace, d);
      const int64_t needed = std::max(device.reserved, live);
      if (device.limit > 0 && needed > device.limit) {
        problem(field("limit"), "device " + std::to_string(d) + " needs " + std::to_string(needed) +
                                    " bytes of " + std::to_string(device.limit));
      }
    }
  }

 private:
  // Sums of bytes that are rounded in another order differ by at most this.
  static constexpr int64_t kRoundedBytes = 1;

  // Whether the schedule is the result of a search. Another version of the search may find another
  // table, so the name does not determine the table.
  bool is_searched(const std::string& name) const {
    return gpipe::internal::search_work(name, plan_.schedule.stages(),
                                        plan_.schedule.micro_batches()) > 0;
  }

  static std::set<int64_t> set_of(const std::vector<int64_t>& values) {
    return {values.begin(), values.end()};
  }
  static bool differs(double a, double b) {
    return !(std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b)));
  }
  void problem(const std::string& field, const std::string& what) {
    proof_.problems.push_back(field + ": " + what);
  }
  void not_checked(const std::string& field, const std::string& why) {
    proof_.not_checked.push_back(field + ": " + why);
  }

  // Whether a worker's actions are one or more repetitions of its step, as in a plan of the memory.
  static bool are_steps(const std::vector<Action>& ran, const std::vector<Action>& step) {
    if (ran.empty() || step.empty()) return ran.size() == step.size();
    if (ran.size() % step.size() != 0) return false;
    for (size_t k = 0; k < ran.size(); ++k) {
      if (ran[k] != step[k % step.size()]) return false;
    }
    return true;
  }

  // Compares the trace's actions with the plan's table, and computes what the allocator reserves.
  void check_trace(const MemoryTrace& trace) {
    const size_t devices = plan_.devices.size();
    if (static_cast<size_t>(trace.devices) != devices) {
      throw std::invalid_argument("check_plan: the trace is of " + std::to_string(trace.devices) +
                                  " devices, but the plan has " + std::to_string(devices) +
                                  "; give the trace of this plan");
    }
    std::vector<std::vector<Action>> ran(devices);
    for (const Turn& turn : trace.turns) {
      if (turn.kind != Turn::Kind::kAction) continue;
      if (turn.action.stage < 0 || turn.action.stage >= plan_.schedule.stages()) {
        problem("schedule", "the memory plan's trace has an action of stage " +
                                std::to_string(turn.action.stage) + ", the schedule has " +
                                std::to_string(plan_.schedule.stages()) + " stages");
        continue;
      }
      ran[static_cast<size_t>(plan_.schedule.worker_of(turn.action.stage))].push_back(turn.action);
    }
    for (size_t d = 0; d < devices; ++d) {
      if (are_steps(ran[d], plan_.schedule.table()[d])) continue;
      problem("schedule",
              "the memory plan's trace has other actions on device " + std::to_string(d));
    }
    check_traced_balance(trace);
    not_checked("trace", "it does not say with which checkpoint modes it was recorded");
    proof_.reserved = peak_reserved(trace);
    for (size_t d = 0; d < devices; ++d) {
      // The limit is enough if the allocator keeps it by giving back what it has cached.
      const int64_t limit = plan_.devices[d].limit;
      if (limit > 0 && proof_.reserved[d] > limit) {
        proof_.reserved[d] = peak_reserved(trace, limit)[d];
      }
    }
  }

  // Compares the parameters in the trace with those that the balance puts on each device. A tied
  // weight counts at its first layer; its copies on other devices come on top.
  void check_traced_balance(const MemoryTrace& trace) {
    std::vector<int64_t> traced(plan_.devices.size()), planned(plan_.devices.size());
    for (const MemoryBlock& block : trace.blocks) {
      const auto device = static_cast<size_t>(block.device);
      if (block.use == MemoryUse::kParameters && device < traced.size()) {
        traced[device] += block.bytes;
      }
    }
    size_t layer = 0;
    for (size_t j = 0; j < plan_.balance.size(); ++j) {
      const auto device = static_cast<size_t>(plan_.schedule.worker_of(static_cast<int64_t>(j)));
      for (int64_t k = 0; k < plan_.balance[j]; ++k, ++layer) {
        planned[device] += profile_.layers[layer].parameters;
      }
    }
    if (std::accumulate(traced.begin(), traced.end(), int64_t{0}) <
        std::accumulate(planned.begin(), planned.end(), int64_t{0})) {
      not_checked("balance", "the trace has fewer bytes of parameters than the profile");
      return;
    }
    for (size_t d = 0; d < traced.size(); ++d) {
      if (traced[d] >= planned[d]) continue;
      problem("balance", "the memory plan's trace has " + std::to_string(traced[d]) +
                             " bytes of parameters on device " + std::to_string(d) +
                             ", the balance puts " + std::to_string(planned[d]) + " there");
    }
  }

  void check_reserved(const std::string& field, const MemoryTrace* trace, size_t d) {
    const int64_t said = plan_.devices[d].reserved;
    if (said < 0) {
      if (trace != nullptr) not_checked(field, "the plan does not say it");
      return;
    }
    if (trace == nullptr) {
      problem(field, "the plan says " + std::to_string(said) +
                         " bytes, which only a plan of the memory can know");
    } else if (said != proof_.reserved[d]) {
      problem(field, "the allocator reserves " + std::to_string(proof_.reserved[d]) +
                         " bytes, the plan says " + std::to_string(said));
    }
  }

  const PipelinePlan& plan_;
  const Profile& profile_;
  const std::vector<double>& sizes_;
  const ExplainOptions& machine_;
  PlanProof& proof_;
};

}  // namespace

double step_lower_bound(const Profile& profile, const std::vector<double>& sizes, int64_t devices,
                        const ExplainOptions& machine) {
  if (sizes.empty() || devices < 1) {
    throw std::invalid_argument("step_lower_bound: " + std::to_string(sizes.size()) +
                                " micro-batches and " + std::to_string(devices) +
                                " devices were given; give at least one of each");
  }
  const double rows = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  const double smallest = *std::min_element(sizes.begin(), sizes.end());
  const double largest = *std::max_element(sizes.begin(), sizes.end());
  double work = 0;      // seconds of a micro-batch of size 1
  double through = 0;   // seconds of its way through all layers, without weight gradients
  double heaviest = 0;  // seconds of the heaviest layer
  double waiting = 0;   // seconds that all devices wait for their first micro-batch
  double before = 0;    // seconds of the forwards of the layers so far
  for (size_t k = 0; k < profile.layers.size(); ++k) {
    const LayerProfile& layer = profile.layers[k];
    const SplitBackward halves = split_backward(layer);
    const double of_layer = layer.forward + std::min(layer.backward, halves.input + halves.weight);
    work += of_layer;
    through += layer.forward + std::min(layer.backward, halves.input);
    heaviest = std::max(heaviest, of_layer);
    // In the order of the model, the device number k has at least k layers before its first one.
    if (static_cast<int64_t>(k) < devices) waiting += smallest * before;
    before += layer.forward;
  }
  const auto micro_batches = static_cast<double>(sizes.size());
  const double overhead = 2 * micro_batches * machine.overhead;  // seconds on one device
  const auto all = static_cast<double>(devices);
  const bool few = machine.cores > 0 && machine.cores < devices;
  const double even = few ? rows * work / static_cast<double>(machine.cores)
                          : (rows * work + waiting) / all + overhead;
  return std::max({even, largest * through, rows * heaviest});
}

PlanProof check_plan(const PipelinePlan& plan, const Profile& profile,
                     const std::vector<double>& sizes, const ExplainOptions& machine,
                     const MemoryTrace* trace) {
  check_plan_value(plan, "check_plan: ");
  check_machine(machine, "check_plan: ");
  PlanDerivation derived = derive_plan(plan, profile, sizes, machine);
  PlanProof proof;
  proof.ascending = plan.schedule.verify(Sends::kBuffered).ascending;
  proof.deadlock_free = derived.deadlock_free;
  proof.step = derived.step;
  proof.reload_wait = derived.reload_wait;
  proof.offload_wait = derived.offload_wait;
  const auto devices = static_cast<int64_t>(plan.devices.size());
  proof.lower_bound = step_lower_bound(profile, sizes, devices, machine);
  proof.live = std::move(derived.live);
  if (trace != nullptr) {
    try {
      // throws for numbers that the trace does not have, and for sums that overflow
      (void)peaks(*trace);
    } catch (const std::overflow_error& error) {
      throw std::invalid_argument(std::string("check_plan: ") + error.what());
    }
    proof.traced_live = live_of_trace(*trace, plan.devices.size());
  }
  Claims claims(plan, profile, sizes, machine, proof);
  claims.check_names();
  claims.check_chunking();
  claims.check_balance();
  claims.check_schedule();
  claims.check_times();
  claims.check_memory(trace);
  return proof;
}

}  // namespace gpipe::balance
