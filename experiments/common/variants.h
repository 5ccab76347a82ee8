// Which rows of its table an experiment runs.

#ifndef GPIPE_EXPERIMENTS_COMMON_VARIANTS_H_
#define GPIPE_EXPERIMENTS_COMMON_VARIANTS_H_

#include <functional>
#include <string>
#include <vector>

#include "experiments/common/flags.h"
#include "experiments/common/program.h"

namespace gpipe::experiments {

struct VariantName {
  std::string name;
  bool pipeline = false;
};

// The variants that --experiment names, or `defaults` (a list like it) if it is not given, each
// made by `make` with the flags that apply to it.
//
// `make` throws std::invalid_argument where flags do not fit its variant. A variant that was named
// must fit; of the default ones, those that do not stand in the table with the reason, and those
// that are no pipelines do not see --chunks and --balance. Throws std::invalid_argument for unknown
// names, for a named variant that does not fit, and if none of those that a flag is for fits it.
std::vector<Variant> make_variants(
    const CommonFlags& flags, const std::string& defaults, const std::vector<VariantName>& known,
    const std::function<Variant(const CommonFlags& flags, const std::string& name)>& make);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_VARIANTS_H_
