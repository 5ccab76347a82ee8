#include "experiments/frame/other_load.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "machine/cores.h"

namespace gpipe::experiments {

void note_other_load(const OtherLoad& load, Outcome& outcome) {
  outcome.settings["cores"] = machine::usable_cores();
  const std::optional<command::LoadShares> shares = load.shares();
  if (!shares) return;
  // If a row is measured in several rounds, the round with the most other load counts.
  outcome.settings["other_load"] =
      std::max(shares->others, outcome.settings.value("other_load", 0.0));
  if (!disturbs(*shares) || outcome.settings.value("disturbed", false)) return;
  outcome.settings["disturbed"] = true;
  outcome.note += absl::StrFormat("; disturbed: other work had %.0f %% of the cores' time",
                                  100 * shares->others);
}

}  // namespace gpipe::experiments
