// make_variants: which rows of its table an experiment runs.
#ifndef GPIPE_EXPERIMENTS_FRAME_VARIANTS_H_
#define GPIPE_EXPERIMENTS_FRAME_VARIANTS_H_

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"

namespace gpipe::experiments {

struct VariantName {
  std::string name;
  bool pipeline = false;
};

// The names of an experiment's own variants. Those that have a balance are pipelines.
template <typename Own>
std::vector<VariantName> names_of(const std::vector<Own>& variants) {
  std::vector<VariantName> names;
  for (const Own& variant : variants) names.push_back({variant.name, !variant.balance.empty()});
  return names;
}

// The variant of that name. Throws std::invalid_argument for an unknown name.
template <typename Own>
const Own& find_variant(const std::vector<Own>& variants, const std::string& name) {
  for (const Own& variant : variants) {
    if (variant.name == name) return variant;
  }
  throw std::invalid_argument("there is no variant " + name);
}

// The variants that --experiment names, or `defaults` (a list in the same form) if it is not given.
// Each stands once for every one of the experiment's `ways` (kMeasured, kPlanned, kSimulated) that
// --ways names. `make` makes it with the flags that apply to it: --trace is the file of each
// measured pipeline, with its name in it if there are several.
//
// Variants that `defaults` leave out are shown as well, with the way to run them.
//
// `make` throws std::invalid_argument if flags do not fit its variant. A variant that was named
// must fit. A default variant that does not fit is shown in the table with the reason, and default
// variants that are not pipelines do not see --chunks and --balance. Throws std::invalid_argument
// for unknown names, for a named variant that does not fit, and if a flag (--trace as well) fits
// none of the variants that it is for, or is for another way than those that are asked for.
using MakeVariant =
    std::function<RunVariant(const CommonFlags& flags, const std::string& name, Origin way)>;
std::vector<Variant> make_variants(const CommonFlags& flags, const std::string& defaults,
                                   const std::vector<VariantName>& known,
                                   const std::vector<Origin>& ways, const MakeVariant& make);

// Whether a variant is obtained in this way: then the report needs a remark on it.
bool has_way(const std::vector<Variant>& variants, Origin way);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_VARIANTS_H_
