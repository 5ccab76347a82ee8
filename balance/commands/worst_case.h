// worst_case_text: the memory of a plan if all tokens of a micro-batch go to the same experts.
#ifndef BALANCE_COMMANDS_WORST_CASE_H_
#define BALANCE_COMMANDS_WORST_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/commands/command_model.h"
#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// Plans the memory of CommandModel::make_worst with the same options, and prints it; empty for a
// model that has no such case. `room`: the bytes of each device; empty: no limits. A device
// that has too little is named.
std::string worst_case_text(const CommandModel& model, const MemoryPlanOptions& options,
                            const std::vector<int64_t>& room = {});

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_WORST_CASE_H_
