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
  // [device] The bytes that the device has, and the bytes that it needs. Both are empty if there
  // are no limits.
  std::vector<int64_t> room, needed;
};

// Plans the memory of CommandModel::make_worst with the same options; none for a model that has no
// such case. `room`: the bytes of each device; empty: no limits.
std::optional<WorstCase> worst_case(const CommandModel& model, const MemoryPlanOptions& options,
                                    const std::vector<int64_t>& room = {});

// Prints the worst case as a table for people, with the devices that have too little memory. Empty
// if there is no worst case.
std::string to_text(const std::optional<WorstCase>& worst);
// Adds the field "worst_case" to what a command writes with --json. Does nothing if there is no
// worst case.
void add_json(const std::optional<WorstCase>& worst, nlohmann::ordered_json& json);

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_WORST_CASE_H_
