// memory_plan_text: prints a memory plan as a table, as JSON and as a picture.
#ifndef BALANCE_MEMORY_MEMORY_PLAN_TEXT_H_
#define BALANCE_MEMORY_MEMORY_PLAN_TEXT_H_

#include <string>

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// Prints a table of 80 columns with a row for each device, in GiB, or in MiB or KiB if the numbers
// are small. Below it: what the columns mean, the type of the devices, and the operators that make
// the plan uncertain.
std::string to_text(const MemoryPlan& plan);

// Prints a JSON object, in bytes: "parameters" (their number), "total_bytes",
// "total_reserved_bytes" (null if a device runs out of memory), and "devices", each an object with
// the device's numbers and their parts. "pinned_bytes": for each stage, if the schedule has
// offloads. "device_type" and "uncertain" are as in the text.
std::string to_json(const MemoryPlan& plan);

// Draws what each device holds in the second step, by use, as an SVG picture with `title` above it.
std::string to_svg(const MemoryPlan& plan, const std::string& title);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_MEMORY_PLAN_TEXT_H_
