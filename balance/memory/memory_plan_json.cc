#include "balance/memory/memory_plan_json.h"

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "balance/memory/memory_trace.h"
#include "balance/memory/plan_uncertainty.h"

namespace gpipe::balance {

nlohmann::ordered_json as_json(const MemoryPlan& plan) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](int64_t bytes) { return bytes < 0 ? Json() : Json(bytes); };
  Json json;
  json["balance"] = plan.balance;
  json["parameters"] = plan.parameters;
  json["total_bytes"] = plan.total_bytes();
  json["total_reserved_bytes"] = or_null(plan.total_reserved());
  json["device_of_stage"] = plan.device_of_stage;
  json["device_type"] = c10::DeviceTypeName(plan.device_type, /*lower_case=*/true);
  json["autocast"] = plan.autocast.empty() ? Json() : Json(plan.autocast);
  json["deferred_batch_norm"] = plan.deferred_batch_norm;
  if (!plan.pinned.empty()) json["pinned_bytes"] = plan.pinned;
  json["uncertain"] = Json::array();
  for (const Uncertainty& each : plan.uncertain) {
    Json& item = json["uncertain"].emplace_back();
    item["operators"] = each.operators;
    item["real_to_planned"] =
        each.range ? Json(std::vector<double>{each.range->low, each.range->high}) : Json();
    item["why"] = each.why;
  }
  for (const DeviceMemory& device : plan.devices) {
    Json& item = json["devices"].emplace_back();
    item["parameters"] = device.parameter_count;
    item["total_bytes"] = device.peak.bytes;
    item["reserved_bytes"] = or_null(device.reserved);
    item["parameter_bytes"] = device.parameters;
    item["gradient_bytes"] = device.gradients;
    item["optimizer_state_bytes"] = device.optimizer_state;
    item["buffer_bytes"] = device.buffers;
    item["peak"]["at"] = name_of(plan.trace.turns[device.peak.turn]);
    for (int k = 0; k < kMemoryUses; ++k) {
      const auto use = static_cast<MemoryUse>(k);
      item["peak"]["bytes"][name_of(use)] = device.peak.of(use);
    }
  }
  return json;
}

}  // namespace gpipe::balance
