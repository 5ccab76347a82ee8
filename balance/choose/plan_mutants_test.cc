// Changes every field of a plan's JSON in every way that a number, a name, a list or a table can be
// changed. For each change, the reader or check_plan() must name the field as wrong, or
// check_plan() must say that the field is not checked, or the changed plan must be as good. A new
// field is covered automatically.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balance/choose/pipeline_plan.h"
#include "balance/choose/plan_check.h"
#include "balance/costs/profile.h"
#include "balance/memory/caching_allocator.h"
#include "balance/memory/memory_trace.h"
#include "balance/step/explain.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::balance {
namespace {

using Json = nlohmann::ordered_json;

struct Subject {
  std::string name;
  Profile profile;
  ExplainOptions machine;
  std::vector<double> sizes;
  bool traced = false;
  MemoryTrace trace;
  PipelinePlan plan;

  PlanProof check(const PipelinePlan& plan) const {
    return check_plan(plan, profile, sizes, machine, traced ? &trace : nullptr);
  }
};

Profile uneven_profile() {
  Profile profile;
  profile.device = "a device";
  profile.batch_rows = 3;
  profile.input = 5000;
  for (int k = 0; k < 8; ++k) {
    LayerProfile layer;
    layer.name = std::to_string(k);
    layer.forward = 1 + 0.37 * k;
    layer.backward = 2 + 0.71 * ((k * 3) % 8);
    layer.parameters = 100 + 37 * k;
    layer.buffers = 3 * k;
    layer.kept = 900 + 111 * ((k * 5) % 8);
    layer.workspace = 70 + 13 * k;
    layer.output = 500 + 49 * k;
    layer.split = SplitBackward{0.6 * layer.backward, 0.5 * layer.backward, 300 + 17 * k};
    profile.layers.push_back(layer);
  }
  profile.skips = {{1, 6, 640}};
  profile.shared_inputs = std::vector<int64_t>{1};
  return profile;
}

// The memory that each action allocates and frees on its device.
// `balance` and `profile` say which parameters lie on which device.
MemoryTrace trace_of(const Schedule& schedule, const std::vector<int64_t>& balance,
                     const Profile& profile) {
  MemoryTrace trace;
  trace.devices = static_cast<int32_t>(schedule.workers());
  trace.turns.emplace_back();
  size_t layer = 0;
  for (size_t j = 0; j < balance.size(); ++j) {
    const auto device = static_cast<int32_t>(schedule.worker_of(static_cast<int64_t>(j)));
    for (int64_t k = 0; k < balance[j]; ++k, ++layer) {
      trace.events.push_back({static_cast<int32_t>(trace.blocks.size()), 0, false});
      trace.blocks.push_back({profile.layers[layer].parameters, device, MemoryUse::kParameters});
    }
  }
  std::vector<std::vector<int32_t>> block(
      static_cast<size_t>(schedule.stages()),
      std::vector<int32_t>(static_cast<size_t>(schedule.micro_batches())));
  for (int32_t d = 0; d < trace.devices; ++d) {
    for (const Action& action : schedule.table()[static_cast<size_t>(d)]) {
      const auto turn = static_cast<int32_t>(trace.turns.size());
      trace.turns.push_back({Turn::Kind::kAction, action});
      int32_t& of_cell =
          block[static_cast<size_t>(action.stage)][static_cast<size_t>(action.micro_batch)];
      if (action.kind == ActionKind::kForward) {
        of_cell = static_cast<int32_t>(trace.blocks.size());
        trace.blocks.push_back({(int64_t{3} << 20) * (action.stage + 1), d});
        trace.events.push_back({of_cell, turn, false});
      } else if (action.kind != ActionKind::kInputGradient) {
        trace.events.push_back({of_cell, turn, true});
      }
    }
  }
  return trace;
}

Subject subject(const std::string& name, const Schedule& schedule,
                const std::vector<int64_t>& balance, bool traced) {
  Subject result;
  result.name = name;
  result.profile = uneven_profile();
  result.machine.bandwidth = 4000;
  result.machine.overhead = 0.01;
  result.machine.keep_together = {{6, 7}};
  PipelinePlan& plan = result.plan;
  plan.model = "a model";
  plan.profiled_on = result.profile.device;
  result.profile.autocast = plan.autocast = "bfloat16";
  result.profile.deferred_batch_norm = plan.deferred_batch_norm = true;
  plan.rows = 11;
  plan.chunks = 4;
  plan.balance = balance;
  plan.shared_inputs = {1};
  plan.checkpoints.assign(balance.size(), Checkpoint::kNever);
  plan.checkpoints[0] = Checkpoint::kAlways;
  plan.checkpoints[1] = Checkpoint::kExceptLast;
  plan.schedule_name = name;
  plan.schedule = schedule;
  for (const int64_t rows : micro_batch_sizes(plan.rows, plan.chunks)) {
    result.sizes.push_back(static_cast<double>(rows) / 3);
  }
  ExplainOptions options = result.machine;
  options.chunks = 4;
  options.micro_batch_sizes = result.sizes;
  options.partition_checkpoints = plan.checkpoints;
  options.schedule = [&](int64_t, int64_t) { return schedule; };
  const Explanation explanation = explain(result.profile, balance, options);
  plan.step = explanation.step;
  plan.lower_bound =
      step_lower_bound(result.profile, result.sizes, schedule.workers(), result.machine);
  result.traced = traced;
  result.trace = trace_of(schedule, balance, result.profile);
  const std::vector<MemoryPeak> most = peaks(result.trace);
  const std::vector<int64_t> reserved = peak_reserved(result.trace);
  plan.devices.clear();
  for (size_t d = 0; d < explanation.workers.size(); ++d) {
    const int64_t predicted = explanation.workers[d].memory;
    if (traced) {
      plan.devices.push_back({reserved[d] + 1000, most[d].bytes, reserved[d], predicted});
    } else {
      plan.devices.push_back({predicted + 1000, predicted, -1, predicted});
    }
  }
  return result;
}

struct Mutant {
  std::string field;
  std::string how;
  Json json;
};

std::string table_text(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// The tables that differ from `table` by one change.
std::vector<std::string> other_tables(const std::string& table) {
  std::vector<std::string> lines;
  std::istringstream in(table);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::vector<std::string> result;
  for (size_t k = 2; k < lines.size(); ++k) {
    const size_t colon = lines[k].find(": ");
    std::istringstream actions(lines[k].substr(colon + 2));
    std::vector<std::string> words;
    for (std::string word; actions >> word;) words.push_back(word);
    const auto with = [&](const std::vector<std::string>& changed) {
      std::vector<std::string> all = lines;
      all[k] = lines[k].substr(0, colon + 1);
      for (const std::string& word : changed) all[k] += " " + word;
      result.push_back(table_text(all));
    };
    for (size_t i = 0; i + 1 < words.size(); ++i) {
      std::vector<std::string> swapped = words;
      std::swap(swapped[i], swapped[i + 1]);
      with(swapped);
    }
    std::vector<std::string> shorter = words;
    shorter.pop_back();
    with(shorter);
    for (size_t other = k + 1; other < lines.size(); ++other) {  // two workers exchanged
      std::vector<std::string> all = lines;
      const size_t there = lines[other].find(": ");
      all[k] = lines[k].substr(0, colon) + lines[other].substr(there);
      all[other] = lines[other].substr(0, there) + lines[k].substr(colon);
      result.push_back(table_text(all));
    }
  }
  // Gradients in descending order: the last micro-batch first, everywhere.
  std::vector<std::string> descending = lines;
  for (size_t k = 2; k < lines.size(); ++k) {
    std::istringstream in_line(lines[k]);
    descending[k].clear();
    for (std::string word; in_line >> word;) {
      const size_t dot = word.find('.');
      if (dot != std::string::npos && word.back() != ':') {
        word = word.substr(0, dot + 1) + std::to_string(3 - std::stoi(word.substr(dot + 1)));
      }
      descending[k] += (descending[k].empty() ? "" : " ") + word;
    }
  }
  result.push_back(table_text(descending));
  return result;
}

// Other values for the field.
std::vector<Json> other_values(const std::string& field, const Json& value) {
  std::vector<Json> result;
  if (value.is_boolean()) {
    result.emplace_back(!value.get<bool>());
  } else if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    for (const int64_t other : {number - 2, number + 2, number - 700, number + 700, number * 2,
                                int64_t{0}, int64_t{-1}, int64_t{1}}) {
      result.emplace_back(other);
    }
  } else if (value.is_number()) {
    for (const double factor : {0.0, -1.0, 0.5, 1 - 1e-6, 1 + 1e-6, 2.0}) {
      result.emplace_back(value.get<double>() * factor);
    }
  } else if (field == "schedule") {
    for (const std::string& table : other_tables(value.get<std::string>())) {
      result.emplace_back(table);
    }
  } else if (value.is_string()) {
    for (const NamedSchedule& named : named_schedules()) result.emplace_back(named.name);
    for (const char* text : {"search", "always", "except_last", "never", "", "x"}) {
      result.emplace_back(text);
    }
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      for (size_t j = i + 1; j < value.size(); ++j) {
        Json swapped = value;
        std::swap(swapped[i], swapped[j]);
        result.push_back(swapped);
      }
    }
    Json fewer = value;
    fewer.erase(fewer.size() - 1);
    result.push_back(fewer);
    Json more = value;
    more.push_back(value.back());
    result.push_back(more);
    if (value.front().is_number_integer()) {  // a layer moved to the neighbor
      for (size_t i = 0; i + 1 < value.size(); ++i) {
        for (const int64_t layers : {1, -1}) {
          Json moved = value;
          moved[i] = value[i].get<int64_t>() + layers;
          moved[i + 1] = value[i + 1].get<int64_t>() - layers;
          result.push_back(moved);
        }
      }
    }
  }
  return result;
}

// `here` stands at `place` in `whole`.
void add_mutants(const Json& whole, const Json::json_pointer& place, const std::string& field,
                 std::vector<Mutant>& mutants) {
  const Json& here = whole.at(place);
  if (!here.is_object()) {
    for (const Json& value : other_values(field, here)) {
      if (value == here) continue;
      Mutant mutant{field, place.to_string() + " = " + value.dump(), whole};
      mutant.json[place] = value;
      mutants.push_back(std::move(mutant));
    }
  }
  if (here.is_object()) {
    for (const auto& [name, value] : here.items()) {
      Mutant without{name, place.to_string() + " without " + name, whole};
      without.json[place].erase(name);
      mutants.push_back(std::move(without));
      add_mutants(whole, place / name, name, mutants);
    }
  } else if (here.is_array()) {
    for (size_t k = 0; k < here.size(); ++k) add_mutants(whole, place / k, field, mutants);
  }
}

// Whether a text such as "rows, chunks: ..." or "devices[1].live: ..." names the field.
bool names(const std::string& text, const std::string& field) {
  return text.find(field) != std::string::npos;
}

// Whether `name` gives this schedule. Several names may stand for the same table.
bool is_named(const Schedule& schedule, const std::string& name) {
  NamedScheduleOptions options;
  options.stages_per_worker = schedule.stages() / schedule.workers();
  return schedule_by_name(name, schedule.stages(), schedule.micro_batches(), options) == schedule;
}

// Empty if the mutant is caught; otherwise what went wrong.
std::string escaped(const Subject& subject, const Mutant& mutant) {
  PlanProof proof;
  PipelinePlan plan;
  try {
    plan = plan_from_json(mutant.json.dump(), "f");
    if (plan == subject.plan) return "";
    proof = subject.check(plan);
  } catch (const std::invalid_argument& error) {
    return names(error.what(), mutant.field) ? "" : std::string("it throws ") + error.what();
  }
  for (const std::string& problem : proof.problems) {
    if (names(problem, mutant.field)) return "";
  }
  if (!proof.problems.empty()) return "its problem is " + proof.problems.front();
  for (const std::string& claim : proof.not_checked) {
    if (names(claim.substr(0, claim.find(':')), mutant.field)) return "";
  }
  if (mutant.field == "schedule_name" && is_named(plan.schedule, plan.schedule_name)) return "";
  // A change of these fields may be accepted if the changed plan is as good: it does the same in
  // another order.
  const PlanProof original = subject.check(subject.plan);
  static const std::set<std::string> kMayBeTheSame = {"balance", "checkpoints", "chunks",
                                                      "schedule", "shared_inputs"};
  if (kMayBeTheSame.count(mutant.field) > 0 &&
      std::abs(proof.step - original.step) <= 1e-9 * original.step && proof.live == original.live) {
    return "";
  }
  return "it is accepted";
}

std::vector<Subject> subjects() {
  return {subject("1f1b", Schedule::one_f_one_b(3, 4), {3, 2, 3}, false),
          subject("search", zb_h1(3, 4), {2, 3, 3}, false),
          subject("interleaved", interleaved(2, 2, 4), {2, 1, 3, 2}, true),
          subject("search", dualpipe_v(2, 4), {2, 1, 3, 2}, true)};
}

TEST(PlanMutants, EachIsRefusedByItsFieldOrSaidNotToBeChecked) {
  int64_t tried = 0;
  for (const Subject& subject : subjects()) {
    ASSERT_EQ(subject.check(subject.plan).problems, std::vector<std::string>()) << subject.name;
    std::vector<Mutant> mutants;
    add_mutants(Json::parse(plan_to_json(subject.plan)), Json::json_pointer(), "", mutants);
    for (const Mutant& mutant : mutants) {
      EXPECT_EQ(escaped(subject, mutant), "") << subject.name << ", " << mutant.how;
    }
    tried += static_cast<int64_t>(mutants.size());
  }
  EXPECT_GT(tried, 1000);
}

}  // namespace
}  // namespace gpipe::balance
