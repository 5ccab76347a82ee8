// memory_plan_json: a memory plan as a JSON object, which to_json() prints.
#ifndef BALANCE_MEMORY_MEMORY_PLAN_JSON_H_
#define BALANCE_MEMORY_MEMORY_PLAN_JSON_H_

#include <nlohmann/json_fwd.hpp>

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

nlohmann::ordered_json as_json(const MemoryPlan& plan);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_MEMORY_PLAN_JSON_H_
