#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/choose/plan.h"
#include "balance/choose/plan_offloads.h"
#include "balance/costs/parsed_json.h"
#include "command/wrap.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/placement.h"
#include "text/counted.h"
#include "text/memory_size.h"
#include "text/shown.h"

namespace gpipe::balance {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 80;

std::string seconds_text(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.4g ms", seconds * 1e3)
                     : absl::StrFormat("%.4g s", seconds);
}

std::string percent(double share) { return absl::StrFormat("%+.1f %%", share * 100); }

// The modes as text that is short enough for a column.
std::string short_modes(const std::vector<Checkpoint>& modes) {
  const std::string text = to_text(modes);
  return text.find(',') == std::string::npos ? text : "mixed";
}

int64_t most(const std::vector<int64_t>& bytes) {
  return *std::max_element(bytes.begin(), bytes.end());
}

std::string paragraph(const std::string& text) { return command::wrap(text, kColumns, 0, 2); }

// Prints "  name        value"; further lines of a long value are indented to its begin.
std::string named(const std::string& name, const std::string& value) {
  constexpr size_t kIndent = 14;
  std::string text = command::wrap(value, kColumns, kIndent, kIndent);
  const std::string label = absl::StrFormat("  %-11s ", name);
  return label + text.substr(kIndent);
}

std::string shortened(std::string text, size_t room) {
  if (text.size() > room) text = text.substr(0, room - 3) + "...";
  return text;
}

// The balance as text, like "12,53". A long one gets a space after each comma, where its lines can
// be broken.
std::string balance_text(const std::vector<int64_t>& balance) {
  return absl::StrJoin(balance, balance.size() > 16 ? ", " : ",");
}

std::string offloads_text(const PlanReport& report) {
  const Schedule& schedule = report.plan.schedule;
  std::string text = absl::StrFormat("%d of %d cells wait on the host", offloaded_cells(schedule),
                                     schedule.stages() * schedule.micro_batches());
  if (report.pinned.empty()) return text;
  const int64_t pinned = std::accumulate(report.pinned.begin(), report.pinned.end(), int64_t{0});
  return text + ", in " + bytes_text(pinned) + " of pinned memory";
}

std::string choice_text(const PlanReport& report) {
  const PipelinePlan& plan = report.plan;
  const auto devices = static_cast<int64_t>(plan.devices.size());
  const int64_t limit = plan.devices.front().limit;
  std::string text = paragraph(absl::StrFormat(
      "%s%d rows on %s%s:", plan.model.empty() ? "" : text::shown(plan.model) + ", ", plan.rows,
      text::counted(devices, "device"), limit > 0 ? " of " + bytes_text(limit) : ""));
  const auto line = [&](const char* name, const std::string& value) { text += named(name, value); };
  line("chunks",
       absl::StrFormat("%d (micro-batches of %d rows)", plan.chunks, report.rows_of_profile));
  if (!plan.autocast.empty()) line("autocast", plan.autocast);
  if (plan.deferred_batch_norm) line("batch norms", "deferred");
  line("schedule", plan.schedule_name);
  if (offloaded_cells(plan.schedule) > 0) line("offloads", offloads_text(report));
  if (!report.no_offloads.empty()) line("offloads", "none: " + report.no_offloads);
  line("placement", absl::StrCat(balance_text(plan.placement().worker_of_stage()),
                                 " (the device of each stage)"));
  line("checkpoint", to_text(plan.checkpoints, ", "));
  line("balance", balance_text(plan.balance));
  return text;
}

std::string step_text(const PlanReport& report) {
  const PipelinePlan& plan = report.plan;
  const bool nominal = plan.profiled_on.rfind("nominal", 0) == 0;
  std::string text = absl::StrFormat("A step is predicted to take %s",
                                     plan.step > 0 ? seconds_text(plan.step) : "no time");
  if (plan.step > 0) text += absl::StrFormat(", %.0f %% idle", 100 * report.explanation.bubble);
  // The ranges are from docs/results.md. //balance/step:prediction_benchmark has measured whole
  // backwards, //experiments/unet_schedules split ones.
  text += nominal
              ? ", with counted times of a nominal device: good for comparing choices only."
              : absl::StrFormat(
                    " (profiled on: %s). On the idle cores of a CPU such predictions were %s.",
                    text::shown(plan.profiled_on),
                    report.explanation.splits
                        ? "1.01 to 1.10 of real steps with split backwards (of a U-Net), 0.85 "
                          "to 1.10 with whole ones (of four networks)"
                        : "0.85 to 1.10 of real steps (of four networks, with whole backwards)");
  if (report.explanation.splits && !report.explanation.halves_measured) {
    text +=
        " The halves of split backwards were not measured: each is taken for half of the whole.";
  }
  return paragraph(text);
}

std::string devices_text(const PlanReport& report) {
  std::string text = absl::StrFormat("%-7s%-23s%14s%14s%14s%8s\n", "device", "layers", "live",
                                     "reserved", "limit", "busy");
  const Placement placement = report.plan.placement();
  for (size_t d = 0; d < report.plan.devices.size(); ++d) {
    const PlannedDevice& device = report.plan.devices[d];
    std::string layers;
    for (const int64_t stage : placement.stages_of(static_cast<int64_t>(d))) {
      const LayerRange& range = report.explanation.partitions[static_cast<size_t>(stage)].layers;
      absl::StrAppend(&layers, layers.empty() ? "" : " ", range.first, "-", range.last);
    }
    text += absl::StrFormat("%-7d%-23s%14s%14s%14s%7.0f%%\n", d, shortened(layers, 22),
                            bytes_text(device.live),
                            device.reserved < 0 ? "-" : bytes_text(device.reserved),
                            device.limit == 0 ? "-" : bytes_text(device.limit),
                            100 * report.explanation.workers[d].busy);
  }
  return text;
}

std::string others_text(const PlanReport& report) {
  if (report.others.empty()) {
    const bool limited = report.plan.devices.front().limit > 0;
    return limited ? "No other is known to fit.\n"
                   : "There was one choice of micro-batches, schedule and stages a device.\n";
  }
  // Balances of many partitions would be cut to a few numbers; to_json() has them.
  constexpr size_t kRoom = 7;
  const bool with_balance = std::all_of(
      report.others.begin(), report.others.end(),
      [](const PlanCandidate& other) { return absl::StrJoin(other.balance, ",").size() <= kRoom; });
  std::string text =
      absl::StrFormat("%-7s%-15s%-7s%-12s%9s%8s%13s%s\n", "chunks", "schedule", "stages",
                      "checkpoint", "step", "", "memory", with_balance ? "  balance" : "");
  for (const PlanCandidate& other : report.others) {
    text += absl::StrFormat("%-7d%-15s%-7d%-12s%9s%8s%13s%s\n", other.chunks, other.schedule_name,
                            other.stages_per_device, short_modes(other.checkpoints),
                            seconds_text(other.step), percent(other.step / report.plan.step - 1),
                            bytes_text(most(other.memory)),
                            with_balance ? "  " + absl::StrJoin(other.balance, ",") : "");
  }
  return text;
}

std::string alternatives_text(const PlanReport& report) {
  std::string text;
  for (const PlanAlternative& alternative : report.alternatives) {
    const PlanCandidate& candidate = alternative.candidate;
    const std::string loss =
        candidate.fits()
            ? percent(report.plan.step > 0 ? candidate.step / report.plan.step - 1 : 0)
            : absl::StrFormat("does not fit: %s too much (%s)", bytes_text(candidate.excess),
                              percent(candidate.step / report.plan.step - 1));
    const std::string line =
        absl::StrFormat("  %-11s %-44s ", alternative.what, shortened(alternative.value, 44));
    text += line.size() + loss.size() <= kColumns
                ? line + loss + "\n"
                : std::string(absl::StripTrailingAsciiWhitespace(line)) + "\n" +
                      command::wrap(loss, kColumns, 16, 16);
  }
  return text;
}

std::string proof_text(const PlanReport& report) {
  const PipelinePlan& plan = report.plan;
  const PlanProof& proof = report.proof;
  std::string text;
  const auto line = [&](const std::string& value) { text += command::wrap(value, kColumns, 2, 4); };
  line(
      absl::StrFormat("no deadlock, with sends that never wait: yes; gradients are added up in "
                      "1F1B's order: %s",
                      proof.ascending ? "yes" : "no"));
  line(absl::StrFormat("a step, simulated again: %s", seconds_text(proof.step)));
  if (offloaded_cells(plan.schedule) > 0) {
    const double wait = proof.reload_wait + proof.offload_wait;
    line("actions wait for copies to the host and back: " +
         (wait > kNoWait * proof.step ? seconds_text(wait) + " in all" : "never"));
  }
  if (plan.lower_bound > 0) {
    line(absl::StrFormat(
        "no step of these rows on %d such devices is shorter than %s: the choice is within %.1f %% "
        "of the best there can be",
        plan.devices.size(), seconds_text(plan.lower_bound), 100 * plan.gap()));
  }
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const PlannedDevice& device = plan.devices[d];
    const bool traced = !proof.traced_live.empty();
    std::string memory = absl::StrFormat(
        "device %d: %s live%s", d, bytes_text(traced ? proof.traced_live[d] : proof.live[d]),
        traced ? absl::StrFormat(" (profile: %s)", bytes_text(proof.live[d])) : " (profile)");
    if (device.reserved >= 0) {
      absl::StrAppend(&memory, ", ", bytes_text(proof.reserved[d]), " reserved");
    }
    if (device.limit > 0) absl::StrAppend(&memory, ", of ", bytes_text(device.limit));
    line(memory);
  }
  if (!report.memory_planned) {
    line(
        "the model's memory was not planned, only predicted: what an allocator holds back is not "
        "in it");
  }
  if (!proof.not_checked.empty()) {
    line("not checked: " + absl::StrJoin(proof.not_checked, "; "));
  }
  for (const Uncertainty& uncertainty : report.uncertain) {
    if (!uncertainty.range) continue;  // not checked, see above
    line(absl::StrFormat("uncertain because of %s (real memory was %.2f to %.2f of the plan's): %s",
                         uncertainty.operators, uncertainty.range->low, uncertainty.range->high,
                         uncertainty.why));
  }
  return text;
}

Json json_of(const PlanCandidate& candidate) {
  return {{"chunks", candidate.chunks},
          {"schedule_name", candidate.schedule_name},
          {"stages_per_device", candidate.stages_per_device},
          {"checkpoints", names_of(candidate.checkpoints)},
          {"balance", candidate.balance},
          {"step", candidate.step},
          {"memory", candidate.memory},
          {"fits", candidate.fits()}};
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const auto value = static_cast<double>(bytes);
  const auto up = [](double number) { return std::ceil(number * 100 - 1e-9) / 100; };
  if (value < kMiB) return absl::StrFormat("%d bytes", bytes);
  if (value < text::kGiB) return absl::StrFormat("%.2f MiB", up(value / kMiB));
  return absl::StrFormat("%.2f GiB", up(value / text::kGiB));
}

std::string to_text(const PlanReport& report) {
  return choice_text(report) + "\n" + step_text(report) + "\n" + devices_text(report) +
         "\nThe next best, each with its own cut (stages: of a device):\n" + others_text(report) +
         (report.alternatives.empty()
              ? ""
              : "\n" + paragraph("The choice with one thing replaced (what has a schedule in "
                                 "brackets has its own cut):")) +
         alternatives_text(report) + "\nProof, computed again by other code:\n" +
         proof_text(report) + "\n" +
         paragraph(
             absl::StrFormat("%d predictions%s, %s of memory.", report.examined,
                             report.exhaustive ? " (every cut and every mode of each setting)" : "",
                             text::counted(report.memory_plans, "plan")));
}

std::string to_json(const PlanReport& report) {
  Json json;
  json["plan"] = Json::parse(plan_to_json(report.plan));
  json["gap"] = report.plan.gap();
  Json& others = json["others"] = Json::array();
  for (const PlanCandidate& other : report.others) others.push_back(json_of(other));
  Json& alternatives = json["alternatives"] = Json::array();
  for (const PlanAlternative& alternative : report.alternatives) {
    Json item = {{"what", alternative.what}, {"value", alternative.value}};
    item.update(json_of(alternative.candidate));
    alternatives.push_back(std::move(item));
  }
  json["proof"] = {{"deadlock_free", report.proof.deadlock_free},
                   {"ascending", report.proof.ascending},
                   {"step", report.proof.step},
                   {"lower_bound", report.proof.lower_bound},
                   {"live", report.proof.live},
                   {"traced_live", report.proof.traced_live},
                   {"reserved", report.proof.reserved},
                   {"not_checked", report.proof.not_checked}};
  if (const int64_t cells = offloaded_cells(report.plan.schedule); cells > 0) {
    json["offloads"] = {{"cells", cells},
                        {"pinned", report.pinned},
                        {"reload_wait", report.proof.reload_wait},
                        {"offload_wait", report.proof.offload_wait}};
  }
  json["halves_measured"] = report.explanation.halves_measured;
  json["memory_planned"] = report.memory_planned;
  json["examined"] = report.examined;
  json["exhaustive"] = report.exhaustive;
  return json_text(json);
}

}  // namespace gpipe::balance
