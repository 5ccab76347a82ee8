#include "diagnose/diagnosis_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/costs/parsed_json.h"
#include "command/wrap.h"
#include "diagnose/diagnosis_json.h"
#include "text/counted.h"
#include "text/digits.h"
#include "text/memory_size.h"
#include "text/shown.h"

namespace gpipe {
namespace {

using text::counted;

constexpr size_t kColumns = 80;
constexpr double kBar = 30;  // the columns of a bar for all of the lost time

// The value as text, with at least three significant digits and no exponent.
std::string digits(double value) { return std::abs(value) < 0.0005 ? "0" : text::digits(value); }
std::string ms(double seconds) { return digits(seconds * 1e3); }
std::string number_in(int64_t bytes, const text::MemoryUnit& unit) {
  return digits(static_cast<double>(bytes) / static_cast<double>(unit.bytes));
}
// A size as text: "1.50 MiB".
std::string size(int64_t bytes) {
  const text::MemoryUnit unit = text::memory_unit(bytes);
  return number_in(bytes, unit) + " " + unit.name;
}

std::string wrapped(const std::string& text, size_t first = 0, size_t rest = 2) {
  return command::wrap(text, kColumns, first, rest);
}

// A list as text: "{3, 4}".
template <typename T>
std::string list(const std::vector<T>& values) {
  return "{" + absl::StrJoin(values, ", ") + "}";
}

// The modes as text: "never", or "{always, never}" if partitions differ.
std::string modes(const std::vector<Checkpoint>& checkpoints) {
  const std::string text = to_text(checkpoints, ", ");
  return text.find(',') == std::string::npos ? text : "{" + text + "}";
}

std::string describe(const PipelineSetup& setup) {
  return absl::StrFormat("balance %s, chunks %d, checkpoint %s, schedule %s", list(setup.balance),
                         setup.chunks, modes(setup.checkpoints), text::shown(setup.schedule.name));
}

// The settings of `other` that differ from those of `now`, as text.
std::string changes(const PipelineSetup& now, const PipelineSetup& other) {
  std::vector<std::string> result;
  if (other.chunks != now.chunks) {
    result.push_back(absl::StrFormat("chunks %d (now %d)", other.chunks, now.chunks));
  }
  if (other.balance != now.balance) {
    result.push_back(
        absl::StrFormat("balance %s (now %s)", list(other.balance), list(now.balance)));
  }
  if (other.checkpoints != now.checkpoints) {
    result.push_back(absl::StrFormat("checkpoint %s (now %s)", modes(other.checkpoints),
                                     modes(now.checkpoints)));
  }
  if (other.schedule.name != now.schedule.name) {
    result.push_back(absl::StrFormat("schedule %s (now %s)", text::shown(other.schedule.name),
                                     text::shown(now.schedule.name)));
  }
  return absl::StrJoin(result, ", ");
}

// The partition with the most forwards and backwards. Recomputes are left out, because they do not
// count as imbalance.
size_t most_work(const Diagnosis& d) {
  const auto most = std::max_element(
      d.partitions.begin(), d.partitions.end(),
      [](const PartitionDiagnosis& a, const PartitionDiagnosis& b) { return a.work < b.work; });
  return static_cast<size_t>(most - d.partitions.begin());
}

// An explanation of the cause for readers who do not know the design.
std::string explained(const Diagnosis& d, Cause cause) {
  switch (cause) {
    case Cause::kSmallMicroBatches:
      return "a sample takes longer in a micro-batch than in the whole batch";
    case Cause::kImbalance:
      return absl::StrFormat("partition %d has more work than the others", most_work(d));
    case Cause::kFillAndDrain:
      return "waiting for the first and the last micro-batches";
    case Cause::kRecompute:
      return "second forwards of what is checkpointed";
    case Cause::kTransfers:
      return "copies between devices";
    case Cause::kSharedCores:
      return absl::StrFormat("room for %s; beside others %.2f times as slow",
                             counted(d.cores, "partition"), d.contention);
    case Cause::kOverhead:
      return "what the other parts do not explain";
  }
  return "";
}

std::string parts_text(const Diagnosis& d) {
  const double lost = d.step - d.ideal;
  std::string text;
  for (const Part& part : d.parts) {
    text += absl::StrFormat("  %-21s%9s ms", to_text(part.cause), ms(part.seconds));
    if (lost > 0) {  // shares exist only if time is lost
      const double share = part.seconds / lost;
      const auto columns = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kBar + 0.5);
      text += absl::StrFormat("%6.0f%%", share * 100);
      if (columns > 0) text += "  " + std::string(columns, '#');
    }
    text += "\n";
  }
  text += absl::StrFormat("  %-21s%9s ms%s\n", "together", ms(lost), lost > 0 ? "   100%" : "");
  return text;
}

// The explanation of the largest part, if any time is lost.
std::string largest_text(const Diagnosis& d) {
  const auto largest =
      std::max_element(d.parts.begin(), d.parts.end(),
                       [](const Part& a, const Part& b) { return a.seconds < b.seconds; });
  const bool lost = d.step > d.ideal && largest != d.parts.end() && largest->seconds > 0;
  if (!lost || !d.warning.empty()) return "";
  return wrapped(absl::StrFormat("Most is lost to %s: %s.", to_text(largest->cause),
                                 explained(d, largest->cause))) +
         "\n";
}

// The end of a sentence, like ": 12 ms are lost."
std::string lost_text(const Diagnosis& d) {
  const double lost = d.step - d.ideal;
  if (lost > 0) return absl::StrFormat(": %s ms are lost.", ms(lost));
  if (lost == 0) return ". Nothing is lost.";
  return absl::StrFormat(". Nothing is lost: the step is %s ms shorter than that.", ms(-lost));
}

// Whether a worker has several partitions, so that memory is given for all of them together.
bool shares_workers(const Diagnosis& d) {
  return d.workers < static_cast<int64_t>(d.partitions.size());
}

int64_t most_of(const std::vector<int64_t>& memory) {
  return memory.empty() ? 0 : *std::max_element(memory.begin(), memory.end());
}

std::string partitions_text(const Diagnosis& d) {
  constexpr char kRow[] = "%-8s%12s%12s%12s%14s\n";
  int64_t most = 0;
  for (const PartitionDiagnosis& partition : d.partitions) most = std::max(most, partition.memory);
  const text::MemoryUnit unit = text::memory_unit(most);
  std::string text = absl::StrFormat(kRow, "part.", "layers", "work, ms", "recompute",
                                     std::string("memory, ") + unit.name);
  for (size_t j = 0; j < d.partitions.size(); ++j) {
    const PartitionDiagnosis& partition = d.partitions[j];
    const bool binds = static_cast<int64_t>(j) == d.binding;
    text += absl::StrFormat(kRow, absl::StrFormat("%d%s", j, binds ? " *" : ""),
                            absl::StrFormat("%d-%d", partition.layers.first, partition.layers.last),
                            ms(partition.work), ms(partition.recompute),
                            number_in(partition.memory, unit));
  }
  std::string note = "* has the most to do. Memory is predicted";
  if (shares_workers(d)) {
    note += absl::StrFormat("; for the partitions of a worker together at most %s",
                            size(most_of(d.memory)));
  }
  return text + wrapped(note + ".");
}

std::string advice_text(const Diagnosis& d) {
  if (!d.warning.empty()) return wrapped("There is no advice from such measurements.");
  if (d.advice.empty()) {
    return wrapped(d.memory_limit > 0
                       ? absl::StrFormat("Nothing that was tried is predicted to be faster by 2 %% "
                                         "or more within %s for each %s.",
                                         size(d.memory_limit),
                                         shares_workers(d) ? "worker" : "partition")
                       : std::string("Nothing that was tried is predicted to be faster by 2 % or "
                                     "more: chunks, balance, checkpoints, schedule."));
  }
  std::string text = "What to change, and what it is predicted to gain:\n";
  const char* in_each = shares_workers(d) ? "for a worker" : "in a partition";
  for (const Advice& advice : d.advice) {
    const std::string line = absl::StrFormat(
        "%5.2f times as fast, %s ms: %s; at most %s %s", advice.speed_up, ms(advice.step),
        changes(d.setup, advice.setup), size(most_of(advice.memory)), in_each);
    text += wrapped(line, 2, 8);
  }
  return text;
}

}  // namespace

std::string to_text(const Diagnosis& d) {
  const std::string batch = counted(d.rows, "row");
  std::string text = wrapped("Setup: " + describe(d.setup) + ".");
  if (!d.warning.empty()) text += "\n" + wrapped("WARNING: " + d.warning) + "\n";
  text += wrapped(absl::StrFormat(
      "A step of %s in %s takes %s ms. On one device %s takes %s ms, so %s could take %s ms%s",
      batch, counted(d.micro_batches, "micro-batch", "micro-batches"), ms(d.step),
      d.whole_batch ? "the plain model, with all rows at once,"
                    : "the same, one micro-batch after another,",
      ms(d.plain), counted(d.workers, "worker"), ms(d.ideal), lost_text(d)));
  text += "\n" + parts_text(d) + "\n" + largest_text(d);
  text += partitions_text(d) + "\n" + advice_text(d);
  return text + wrapped("Measured on: " + text::shown(d.device) + ".");
}

std::string to_json(const Diagnosis& diagnosis) { return balance::json_text(as_json(diagnosis)); }

}  // namespace gpipe
