#include "balance/commands/worst_case.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "balance/memory/caching_allocator.h"
#include "balance/memory/memory_plan_text.h"
#include "command/wrap.h"
#include "text/memory_size.h"

namespace gpipe::balance {

std::string worst_case_text(const CommandModel& model, const MemoryPlanOptions& options,
                            const std::vector<int64_t>& room) {
  if (model.make_worst == nullptr) return "";
  CommandModel worst = model;
  worst.make = model.make_worst;
  const Training training = worst.training();
  const MemoryPlan plan =
      memory_plan(worst.make_on_meta(), training.inputs, training.targets, training.loss, options);
  std::string text =
      command::wrap(
          "All experts get as many tokens in this plan. If all tokens of a micro-batch go to the "
          "same ones:",
          80, 0, 0) +
      to_text(plan);
  for (size_t d = 0; d < room.size(); ++d) {
    const DeviceMemory& device = plan.devices.at(d);
    const bool cpu = plan.device_type == c10::kCPU;
    const int64_t needed = cpu ? device.peak.bytes : device.reserved;
    if (needed <= room[d]) continue;
    // The allocator gives back what it has cached before it runs out.
    if (!cpu && room[d] > 0 && peak_reserved(plan.trace, room[d])[d] >= 0) continue;
    const text::MemoryUnit unit = text::memory_unit(needed);
    text += command::wrap(
        absl::StrCat("That does not fit: device ", d, " needs ", text::in_unit(needed, unit, 2),
                     " ", unit.name, " but has room for ", text::in_unit(room[d], unit, 2), "."),
        80, 0, 2);
  }
  return text;
}

}  // namespace gpipe::balance
