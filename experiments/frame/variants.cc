#include "experiments/frame/variants.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "command/select_names.h"
#include "experiments/frame/balance.h"
#include "experiments/frame/trace.h"

namespace gpipe::experiments {
namespace {

// The flag that was given and that only pipelines have.
std::string given(const CommonFlags& flags) {
  return flags.balance.empty() ? "--chunks=" + std::to_string(flags.chunks.value_or(0))
                               : "--balance=" + to_text(flags.balance);
}

std::vector<Origin> select_ways(const CommonFlags& flags, const std::vector<Origin>& ways) {
  if (flags.ways.empty()) return ways;
  std::vector<std::string> known;
  for (const Origin way : ways) known.push_back(to_text(way));
  const std::vector<std::string> asked = command::select_names("--ways", flags.ways, known);
  std::vector<Origin> selected;
  for (const Origin way : ways) {
    if (std::find(asked.begin(), asked.end(), to_text(way)) != asked.end()) selected.push_back(way);
  }
  return selected;
}

}  // namespace

std::vector<Variant> make_variants(const CommonFlags& flags, const std::string& defaults,
                                   const std::vector<VariantName>& known,
                                   const std::vector<Origin>& ways, const MakeVariant& make) {
  const std::vector<Origin> asked_ways = select_ways(flags, ways);
  std::vector<std::string> names;
  for (const VariantName& variant : known) names.push_back(variant.name);
  const bool named = !flags.experiment.empty();
  const std::vector<std::string> asked =
      command::select_names("--experiment", named ? flags.experiment : defaults, names);
  const bool measured =
      std::find(asked_ways.begin(), asked_ways.end(), Origin::kMeasured) != asked_ways.end();
  const auto traced = std::count_if(known.begin(), known.end(), [&](const VariantName& variant) {
    return measured && variant.pipeline &&
           std::find(asked.begin(), asked.end(), variant.name) != asked.end();
  });
  std::string flag = flags.changes_what_runs();
  if (flag.empty() && flags.explain) flag = "--explain";
  if (!measured && !flag.empty()) {
    throw std::invalid_argument(flag +
                                " is for measured rows (--ways=measured); rows at full size (" +
                                to_text(asked_ways.front()) +
                                ") are as published. //balance and //balance:memory_plan predict "
                                "other settings of a pipeline");
  }
  if (!flags.for_simulated.empty() &&
      std::find(asked_ways.begin(), asked_ways.end(), Origin::kSimulated) == asked_ways.end()) {
    throw std::invalid_argument(
        flags.for_simulated +
        " is for simulated rows, and none is made; leave it out, or add simulated to --ways");
  }
  if (!flags.trace.empty() && traced == 0) {
    throw std::invalid_argument("--trace=" + flags.trace +
                                " is for measured pipelines, and none is run; leave it out, or "
                                "choose one with --experiment and --ways");
  }
  std::vector<Variant> variants;
  std::string refusals;
  bool fits = false;
  for (const auto& [name, pipeline] : known) {
    if (std::find(asked.begin(), asked.end(), name) == asked.end()) {
      if (!named) {
        variants.push_back({name, asked_ways.front(),
                            "not among the defaults; --experiment=" + name + " runs it", nullptr});
      }
      continue;
    }
    if (named && !pipeline && flags.for_pipelines()) {
      throw std::invalid_argument(given(flags) + " is for pipelines, not for " + name +
                                  "; leave it out");
    }
    CommonFlags own = flags;
    if (!pipeline) {
      own.chunks.reset();
      own.balance.clear();
    }
    for (const Origin way : asked_ways) {
      Variant variant = {name, way, "", nullptr};
      const bool trace = pipeline && way == Origin::kMeasured && !flags.trace.empty();
      own.trace = !trace ? "" : traced > 1 ? trace_file(flags.trace, name) : flags.trace;
      try {
        variant.run = make(own, name, way);
        fits = fits || !flags.for_pipelines() || (pipeline && way == Origin::kMeasured);
      } catch (const std::invalid_argument& error) {
        if (named) throw;
        refusals += "\n  " + name + ": " + error.what();
        variant.refusal = error.what();
      }
      variants.push_back(std::move(variant));
    }
  }
  if (!fits) {
    throw std::invalid_argument(
        refusals.empty() ? given(flags) + " is for pipelines, and none is run; leave it out"
                         : "nothing can be run:" + refusals);
  }
  return variants;
}

bool has_way(const std::vector<Variant>& variants, Origin way) {
  return std::any_of(variants.begin(), variants.end(),
                     [way](const Variant& variant) { return variant.way == way; });
}

}  // namespace gpipe::experiments
