#include "experiments/common/variants.h"

#include <algorithm>
#include <stdexcept>

#include "command/suggestion.h"
#include "experiments/common/balance.h"

namespace gpipe::experiments {
namespace {

// The flags that only pipelines have.
std::string given(const CommonFlags& flags) {
  return flags.balance.empty() ? "--chunks=" + std::to_string(flags.chunks)
                               : "--balance=" + to_text(flags.balance);
}

}  // namespace

std::vector<Variant> make_variants(
    const CommonFlags& flags, const std::string& defaults, const std::vector<VariantName>& known,
    const std::function<Variant(const CommonFlags& flags, const std::string& name)>& make) {
  std::vector<std::string> names;
  for (const VariantName& variant : known) names.push_back(variant.name);
  const bool named = !flags.experiment.empty();
  const std::vector<std::string> asked =
      command::select_names("--experiment", named ? flags.experiment : defaults, names);
  std::vector<Variant> variants;
  std::string refusals;
  bool fits = false;
  for (const auto& [name, pipeline] : known) {
    if (std::find(asked.begin(), asked.end(), name) == asked.end()) continue;
    if (named && !pipeline && flags.for_pipelines()) {
      throw std::invalid_argument(given(flags) + " is for pipelines, not for " + name);
    }
    CommonFlags own = flags;
    if (!pipeline) {
      own.chunks = 0;
      own.balance.clear();
    }
    try {
      variants.push_back(make(own, name));
      fits = fits || pipeline || !flags.for_pipelines();
    } catch (const std::invalid_argument& error) {
      if (named) throw;
      refusals += "\n  " + name + ": " + error.what();
      variants.push_back({name, error.what(), nullptr});
    }
  }
  if (!fits) {
    throw std::invalid_argument(refusals.empty()
                                    ? given(flags) + " is for pipelines, and none is run"
                                    : "nothing can be run:" + refusals);
  }
  return variants;
}

}  // namespace gpipe::experiments
