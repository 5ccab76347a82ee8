// worst_case: the memory of a plan if all tokens of a micro-batch go to the same experts.
#ifndef BALANCE_COMMANDS_WORST_CASE_H_
#define BALANCE_COMMANDS_WORST_CASE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "balance/commands/command_model.h"
#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

struct WorstCase {
  MemoryPlan plan;
  // [device] The bytes that it has and those that it needs; both empty if there are no limits.
  std::vector<int64_t> room, needed;
};

// Plans the memory of CommandModel::make_worst with the same options; none for a model that has no
// such case. `room`: the bytes of each device; empty: no limits.
std::optional<WorstCase> worst_case(const CommandModel& model, const MemoryPlanOptions& options,
                                    const std::vector<int64_t>& room = {});

// A table for people, and the devices that have too little. Empty for none.
std::string to_text(const std::optional<WorstCase>& worst);
// Adds the field "worst_case" to what a command writes with --json. Does nothing for none.
void add_json(const std::optional<WorstCase>& worst, nlohmann::ordered_json& json);

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_WORST_CASE_H_
