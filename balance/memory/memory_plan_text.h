// memory_plan_text: a memory plan as a table, as JSON and as a picture.
#ifndef BALANCE_MEMORY_MEMORY_PLAN_TEXT_H_
#define BALANCE_MEMORY_MEMORY_PLAN_TEXT_H_

#include <string>

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// A table of 80 columns, in GiB, or in MiB or KiB for what is small, with a row for each device,
// what the columns are, which devices it is for and which operators make it uncertain.
std::string to_text(const MemoryPlan& plan);

// Bytes, in an object: "parameters" (their number), "total_bytes", "total_reserved_bytes" (null if
// a device runs out of memory), and "devices", an object each with the same and its parts;
// "device_type" and "uncertain" say what the text says.
std::string to_json(const MemoryPlan& plan);

// What each device holds in the second step, by use, as an SVG picture; `title` stands above it.
std::string to_svg(const MemoryPlan& plan, const std::string& title);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_MEMORY_PLAN_TEXT_H_
