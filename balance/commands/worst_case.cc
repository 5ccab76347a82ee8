#include "balance/commands/worst_case.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "balance/memory/device_room.h"
#include "balance/memory/memory_plan_json.h"
#include "balance/memory/memory_plan_text.h"
#include "command/wrap.h"
#include "text/memory_size.h"

namespace gpipe::balance {

std::optional<WorstCase> worst_case(const CommandModel& model, const MemoryPlanOptions& options,
                                    const std::vector<int64_t>& room) {
  if (model.make_worst == nullptr) return std::nullopt;
  CommandModel worst = model;
  worst.make = model.make_worst;
  const Training training = worst.training();
  WorstCase result;
  result.plan =
      memory_plan(worst.make_on_meta(), training.inputs, training.targets, training.loss, options);
  result.room = room;
  for (size_t d = 0; d < room.size(); ++d) {
    result.needed.push_back(
        bytes_within(result.plan, d, room[d]).value_or(bytes_without_limit(result.plan, d)));
  }
  return result;
}

std::string to_text(const std::optional<WorstCase>& worst) {
  if (!worst) return "";
  std::string text =
      command::wrap(
          "All experts get as many tokens in this plan. If all tokens of a micro-batch go to the "
          "same ones:",
          80, 0, 0) +
      to_text(worst->plan);
  for (size_t d = 0; d < worst->room.size(); ++d) {
    const int64_t needed = worst->needed[d];
    if (needed <= worst->room[d]) continue;
    const text::MemoryUnit unit = text::memory_unit(needed);
    text += command::wrap(
        absl::StrCat("That does not fit: device ", d, " needs ", text::in_unit(needed, unit, 2),
                     " ", unit.name, " but has room for ", text::in_unit(worst->room[d], unit, 2),
                     "."),
        80, 0, 2);
  }
  return text;
}

void add_json(const std::optional<WorstCase>& worst, nlohmann::ordered_json& json) {
  if (!worst) return;
  nlohmann::ordered_json& item = json["worst_case"];
  if (!worst->room.empty()) {
    bool fits = true;
    for (size_t d = 0; d < worst->room.size(); ++d) fits &= worst->needed[d] <= worst->room[d];
    item["fits"] = fits;
    item["room_bytes"] = worst->room;
    item["needed_bytes"] = worst->needed;
  }
  item["plan"] = as_json(worst->plan);
}

}  // namespace gpipe::balance
