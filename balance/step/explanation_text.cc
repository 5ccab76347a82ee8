#include "balance/step/explanation_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "balance/costs/parsed_json.h"
#include "balance/costs/profile_checks.h"
#include "balance/step/explanation_json.h"
#include "command/wrap.h"
#include "text/counted.h"
#include "text/digits.h"
#include "text/memory_size.h"
#include "text/shown.h"

namespace gpipe::balance {
namespace {

using text::counted;

constexpr size_t kColumns = 80;

// At least three significant digits. Only a value that is too wide for a column has an exponent.
std::string digits(double value) {
  if (value == 0) return "0";
  if (value < 0.0005) return "<0.001";
  if (value >= 1e9) return absl::StrFormat("%.3g", value);
  return text::digits(value);
}

std::string ms(double seconds) { return digits(seconds * 1e3); }
std::string percent(double share) { return absl::StrFormat("%.0f%%", share * 100); }

}  // namespace

std::string to_text(const Explanation& explanation) {
  constexpr char kRow[] = "%-6s%10s%10s%10s%10s%10s%10s%9s%5s\n";
  int64_t most = 0;
  for (const PartitionExplanation& partition : explanation.partitions) {
    most = std::max({most, partition.parameters, partition.memory, partition.sent});
  }
  // Sizes are never shown in GiB, because what small partitions send would show as 0.
  const text::MemoryUnit unit = text::memory_unit(std::min<int64_t>(most, 1 << 20));
  const auto size = [&unit](int64_t bytes) {
    return digits(static_cast<double>(bytes) / static_cast<double>(unit.bytes));
  };
  std::string text = absl::StrFormat("%-16s%30s%29s\n", "", "ms per micro-batch", unit.name);
  text += absl::StrFormat(kRow, "part.", "layers", "forward", "backward", "recompute", "params",
                          "memory", "sent", "busy");
  for (size_t j = 0; j < explanation.partitions.size(); ++j) {
    const PartitionExplanation& partition = explanation.partitions[j];
    const bool binds = static_cast<int64_t>(j) == explanation.binding;
    text += absl::StrFormat(kRow, absl::StrFormat("%d%s", j, binds ? " *" : ""),
                            absl::StrFormat("%d-%d", partition.layers.first, partition.layers.last),
                            ms(partition.forward), ms(partition.backward), ms(partition.recompute),
                            size(partition.parameters), size(partition.memory),
                            size(partition.sent), percent(partition.busy));
  }
  text +=
      "\n" + command::wrap(absl::StrFormat("* partition %d is busy longest: it decides how long "
                                           "a step takes.",
                                           explanation.binding),
                           kColumns, 0, 2);
  const std::string batch = counted(explanation.chunks, "micro-batch", "micro-batches") + " of " +
                            counted(explanation.batch_rows, "row");
  text += command::wrap(
      absl::StrFormat("Predicted for a step of %s: %s ms, %s idle, %.2f times as fast as one "
                      "device (%s ms, nothing recomputed).",
                      batch, ms(explanation.step), percent(explanation.bubble),
                      explanation.speed_up, ms(explanation.one_device)),
      kColumns, 0, 2);
  if (explanation.splits && !explanation.halves_measured) {
    text += command::wrap(
        "The halves of split backwards were not measured: each is taken as half of the whole; "
        "measure the profile again.",
        kColumns, 0, 2);
  }
  const bool all = explanation.cores == 0 ||
                   explanation.cores >= static_cast<int64_t>(explanation.partitions.size());
  return text +
         command::wrap(
             absl::StrFormat(
                 "Profiled on: %s%s; %s at once.", text::shown(explanation.device),
                 training_terms(explanation.autocast, explanation.deferred_batch_norm),
                 all ? "all partitions compute"
                     : counted(explanation.cores, "partition computes", "partitions compute")),
             kColumns, 0, 2);
}

std::string to_json(const Explanation& explanation) { return json_text(as_json(explanation)); }

}  // namespace gpipe::balance
