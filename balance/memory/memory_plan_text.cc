#include "balance/memory/memory_plan_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/costs/profile_checks.h"
#include "balance/memory/memory_plan_json.h"
#include "command/wrap.h"
#include "text/memory_size.h"

namespace gpipe::balance {
namespace {

// The unit for the fullest device.
text::MemoryUnit unit_of(const MemoryPlan& plan) {
  int64_t most = 0;
  for (const DeviceMemory& device : plan.devices) {
    most = std::max({most, device.peak.bytes, device.reserved});
  }
  return text::memory_unit(most);
}

// The layers of a device as text: "0-7", "0-7, 16-23".
std::string layers_on(const MemoryPlan& plan, size_t device) {
  std::vector<std::string> ranges;
  int64_t first = 0;
  for (size_t j = 0; j < plan.balance.size(); ++j) {
    const int64_t last = first + plan.balance[j] - 1;
    if (plan.device_of_stage[j] == static_cast<int64_t>(device)) {
      ranges.push_back(absl::StrFormat("%d-%d", first, last));
    }
    first = last + 1;
  }
  return absl::StrJoin(ranges, ", ");
}

std::string device_text(const MemoryPlan& plan) {
  return plan.device_type == c10::kCPU ? "the CPU" : "CUDA devices";
}

// What the offloads need of the host.
std::string pinned_text(const MemoryPlan& plan) {
  const int64_t all = std::accumulate(plan.pinned.begin(), plan.pinned.end(), int64_t{0});
  const text::MemoryUnit unit = text::memory_unit(all);
  std::vector<std::string> stages;
  for (const int64_t bytes : plan.pinned) stages.push_back(text::in_unit(bytes, unit));
  return absl::StrCat("Offloads need ", text::in_unit(all, unit), " ", unit.name,
                      " of the host's pinned memory (by stage: ", absl::StrJoin(stages, ", "),
                      "), in blocks of powers of two.");
}

std::string with_separators(int64_t number) {
  std::string text = absl::StrCat(number);
  for (auto place = static_cast<int64_t>(text.size()) - 3; place > 0; place -= 3)
    text.insert(static_cast<size_t>(place), 1, ',');
  return text;
}

}  // namespace

std::string to_text(const MemoryPlan& plan) {
  constexpr char kRow[] = "%-5s%-11s%8s%8s%8s%8s%8s%8s%9s  %s\n";
  const text::MemoryUnit unit = unit_of(plan);
  const auto shown = [&unit](int64_t bytes) { return text::in_unit(bytes, unit); };
  std::string text = absl::StrFormat(kRow, "dev.", "layers", "params", "grads", "optim.", "kept",
                                     "work", "peak", "reserved", "at");
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const DeviceMemory& device = plan.devices[d];
    const MemoryPeak& peak = device.peak;
    text += absl::StrFormat(
        kRow, absl::StrCat(d), layers_on(plan, d), shown(peak.of(MemoryUse::kParameters)),
        shown(peak.of(MemoryUse::kGradients)), shown(peak.of(MemoryUse::kOptimizerState)),
        shown(peak.of(MemoryUse::kActivations) + peak.of(MemoryUse::kReceived) +
              peak.of(MemoryUse::kBuffers) + peak.of(MemoryUse::kData)),
        shown(peak.of(MemoryUse::kWorkspace)), shown(peak.bytes),
        device.reserved < 0 ? "no room" : shown(device.reserved),
        name_of(plan.trace.turns[peak.turn]));
  }
  const int64_t reserved = plan.total_reserved();
  text += absl::StrFormat("%-56s%8s%9s\n", "all", shown(plan.total_bytes()),
                          reserved < 0 ? "no room" : shown(reserved));
  text += "\n" + command::wrap(
                     absl::StrCat(with_separators(plan.parameters), " parameters. ", unit.name,
                                  " on each device when it holds most, in the action \"at\" "
                                  "(F0.3: the forward of stage 0 for micro-batch 3; B: backward); "
                                  "kept: activations, received tensors, buffers and "
                                  "data; work: made and given back within the action; reserved: "
                                  "what LibTorch's allocator for CUDA would hold at most, without "
                                  "cuDNN's workspaces."),
                     80, 0, 0);
  text += command::wrap(absl::StrCat("Planned for ", device_text(plan),
                                     training_terms(plan.autocast, plan.deferred_batch_norm), "."),
                        80, 0, 0);
  if (!plan.pinned.empty()) text += command::wrap(pinned_text(plan), 80, 0, 0);
  for (const Uncertainty& each : plan.uncertain) {
    text += command::wrap("Uncertain by " + each.operators + ": " +
                              (each.range ? absl::StrFormat("real steps took %.2f to %.2f of it",
                                                            each.range->low, each.range->high)
                                          : "not measured") +
                              " (" + each.why + ").",
                          80, 0, 0);
  }
  if (reserved < 0) {
    const text::MemoryUnit capacity = text::memory_unit(plan.capacity);
    text += command::wrap(
        absl::StrFormat("No room: with %s %s the allocator runs out of memory there, even after "
                        "it has given back what it caches.",
                        text::in_unit(plan.capacity, capacity), capacity.name),
        80, 0, 0);
  }
  return text;
}

std::string to_json(const MemoryPlan& plan) { return as_json(plan).dump(1) + "\n"; }

}  // namespace gpipe::balance
