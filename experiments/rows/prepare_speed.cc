#include "experiments/rows/prepare_speed.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "command/flag_values.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/row.h"
#include "experiments/rows/simulated_rows.h"
#include "experiments/rows/simulation_flags.h"
#include "experiments/rows/speed_run.h"
#include "experiments/rows/speed_table.h"

ABSL_FLAG(std::optional<int64_t>, samples, std::nullopt,
          "Samples of a measured epoch. Default: the scale's.");
ABSL_FLAG(
    std::optional<int64_t>, rounds, std::nullopt,
    "How often each row is measured: all rows once, in turns, then all once more, with models "
    "made anew. Averages are over all rounds. Default: 2; 1 at full scale, as published.");
ABSL_FLAG(bool, graphs, false,
          "Record each partition's kernels as CUDA Graphs and replay them (measured pipelines; see "
          "docs/design/graphs.md). A partition that cannot be recorded says so in the log.");

namespace gpipe::experiments {
namespace {

std::optional<int64_t> samples_flag() {
  return command::in_range("samples", absl::GetFlag(FLAGS_samples), 1, int64_t{1} << 40);
}

void settle(const SpeedExperiment& experiment, const CommonFlags& flags,
            const SpeedVariant& published, Row& row, SpeedOptions& options) {
  row.name = options.title = published.name;
  row.network = experiment.network(flags.scale);
  row.make_target = experiment.target;
  SpeedSize size = {experiment.samples, experiment.epochs};
  row.batch_size = published.batch_size;
  int64_t chunks = published.chunks;
  if (flags.scale != Scale::kFull) {
    size = flags.scale == Scale::kSmoke ? experiment.smoke : experiment.small;
    chunks = std::min(published.chunks, size.most_chunks);
    row.batch_size = chunks * size.micro_batch;
  }
  row.batch_size = flags.batch_size.value_or(row.batch_size);
  options.epochs = flags.epochs.value_or(size.epochs);
  options.samples = samples_flag().value_or(size.samples);
  if (!published.balance.empty()) {
    row.cut(flags, published.balance, chunks, published.checkpoint, PipelineSetup().schedule);
    row.graphs = absl::GetFlag(FLAGS_graphs);
    row.placement = row.setup.schedule.placement(static_cast<int64_t>(row.setup.balance.size()));
  }
  row.run_here(flags);
  options.skip_epochs = flags.skip_epochs;
  options.trace = flags.trace;
  options.explain = flags.explain;
}

// How often each row is measured (Variant::rounds).
int64_t rounds_of(Scale scale) {
  return command::in_range("rounds", absl::GetFlag(FLAGS_rounds), 1, 1000)
      .value_or(scale == Scale::kFull ? 1 : 2);
}

}  // namespace

RunVariant measured_speed(const SpeedExperiment& experiment, const CommonFlags& flags,
                          const std::string& variant) {
  Row row;
  SpeedOptions options;
  settle(experiment, flags, find_variant(experiment.variants, variant), row, options);
  std::string note = row.describe();
  if (row.graphs) {
    note += row.devices.front().is_cpu() ? ", graphs (the CPU has none)" : ", graphs";
  }
  note += absl::StrFormat(", %d epochs of %d samples, %s", options.epochs, options.samples,
                          count_devices(row.devices));
  if (flags.scale == Scale::kFull && !experiment.assumed.empty()) note += "; " + experiment.assumed;
  Json settings = row.settings();
  settings["samples"] = options.samples;
  settings["epochs"] = options.epochs;
  add_common(flags, row.devices, settings);
  settings["skip_epochs"] = options.skip_epochs;
  if (row.is_pipeline()) add_pipeline(row.setup, settings);
  if (row.graphs) settings["graphs"] = true;
  return [=](Outcome& outcome, const RunContext& context) {
    if (context.round == 1) {
      outcome.note = note;
      outcome.settings = settings;
      if (context.rounds > 1) outcome.settings["rounds"] = context.rounds;
    }
    *context.out << "\n" << row.name << ": " << note << std::endl;
    measure_speed(row, options, context, outcome);
  };
}

ExperimentRun prepare_speed(const SpeedExperiment& experiment) {
  CommonFlags flags = read_common_flags();
  flags.for_measured = first_given({"samples", "graphs"});
  flags.for_simulated = given_simulation_flag();
  (void)samples_flag();
  const int64_t rounds = rounds_of(flags.scale);
  const SimulatedRows simulated(experiment, simulation_flags());
  ExperimentRun prepared;
  prepared.name = experiment.name;
  prepared.edition = experiment.edition;
  prepared.table = speed_table(experiment.title, experiment.variants);
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
