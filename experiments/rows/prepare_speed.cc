#include "experiments/rows/prepare_speed.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/scale.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/measured_speed.h"
#include "experiments/rows/simulated_rows.h"
#include "experiments/rows/simulation_flags.h"

namespace gpipe::experiments {
ExperimentRun prepare_speed(const SpeedExperiment& experiment) {
  CommonFlags flags = read_common_flags();
  flags.for_measured = first_given({"samples", "graphs"});
  flags.for_simulated = given_simulation_flag();
  check_measured_speed_flags();
  const SimulatedRows simulated(experiment, simulation_flags());
  ExperimentRun prepared;
  prepared.name = experiment.name;
  prepared.edition = experiment.edition;
  prepared.table = experiment.table;
  prepared.json = flags.json;
  prepared.remarks = experiment.remarks;
  // Simulated rows run as published, so a user that sets a balance gets measured ones.
  std::vector<Origin> ways = {Origin::kMeasured};
  if (!flags.for_pipelines() || !flags.ways.empty()) ways.push_back(Origin::kSimulated);
  prepared.variants =
      make_variants(flags, "all", names_of(experiment.variants), ways,
                    [&](const CommonFlags& own, const std::string& name, Origin way) -> RunVariant {
                      if (way == Origin::kMeasured) return measured_speed(experiment, own, name);
                      return simulated.row(name);
                    });
  const int64_t rounds = rounds_of(flags.scale);
  for (Variant& variant : prepared.variants) {
    if (variant.way == Origin::kMeasured && variant.refusal.empty()) variant.rounds = rounds;
  }
  if (has_way(prepared.variants, Origin::kMeasured)) {
    prepared.remarks.push_back(
        "Measured: --scale=" + to_text(flags.scale) +
        "; whole training steps on random images, loading left out" +
        (rounds > 1 ? absl::StrFormat("; in turns, %d rounds", rounds) : "") +
        ". Where partitions share cores, the ratio is not a speed-up by pipelines.");
  }
  if (has_way(prepared.variants, Origin::kSimulated))
    prepared.remarks.push_back(simulated.remark());
  return prepared;
}

}  // namespace gpipe::experiments
