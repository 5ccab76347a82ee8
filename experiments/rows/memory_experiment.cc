#include "experiments/rows/memory_experiment.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "balance/memory/optimizer_flag.h"
#include "experiments/frame/memory_limit.h"
#include "experiments/frame/trace.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/explain_run.h"
#include "experiments/rows/memory_run.h"
#include "gpipe/timeline/timeline.h"
#include "text/memory_size.h"

namespace gpipe::experiments {
namespace {

Network network_of(const std::string& name, int64_t image_size = 0) {
  models::NamedModel model = models::model_by_name(name, image_size);
  return {model.name, model};
}

// A row as it is planned: at full size, with the published settings.
MemoryRun planned_run(const MemoryExperiment& experiment, const MemoryVariant& variant) {
  MemoryRun run;
  run.name = variant.name;
  run.network = network_of(variant.network);
  run.batch_size = experiment.batch;
  run.optimizer = balance::parse_optimizer(experiment.optimizer);
  run.cut_as_published(variant.balance, std::min(variant.chunks, experiment.batch),
                       variant.checkpoint);
  return run;
}

MemoryRun measured_run(const MemoryExperiment& experiment, const MemoryVariant& variant,
                       const CommonFlags& flags) {
  MemoryRun run = planned_run(experiment, variant);
  if (flags.scale != Scale::kFull) {
    const SmallNetwork small = experiment.shrink(variant, flags.scale);
    run.network = network_of(small.network, small.image_size);
    run.batch_size = small.batch;
  }
  run.batch_size = flags.batch_size.value_or(run.batch_size);
  if (run.is_pipeline()) {
    run.cut(flags, variant.balance, variant.chunks, variant.checkpoint, published_schedule());
  }
  run.run_here(flags);
  return run;
}

// Fills in the figures. If memory ran out, these are the parameters and the model's memory only.
void fill(const MemoryFigures& figures, int64_t copies, bool out_of_memory, Outcome& outcome) {
  const int64_t model = copies * figures.parameter_bytes;
  outcome.figures["parameters"] = static_cast<double>(figures.parameters);
  outcome.figures["model_memory"] = text::in_gib(model);
  outcome.settings["peak_bytes"] = figures.peaks;
  if (out_of_memory) return;
  outcome.figures["activation_memory"] = text::in_gib(figures.total() - model);
  outcome.figures["memory"] = text::in_gib(figures.total());
}

void plan(const MemoryRun& run, int64_t copies, Outcome& outcome, const RunContext& context) {
  const PlannedMemory planned = plan_memory(run, kP40Bytes, context);
  outcome.settings["capacity_bytes"] = kP40Bytes;
  outcome.settings["live_bytes"] = planned.live;
  fill(planned.figures, copies, planned.out_of_memory, outcome);
  const std::vector<int64_t>& peaks = planned.figures.peaks;
  const int64_t most = *std::max_element(peaks.begin(), peaks.end());
  if (planned.out_of_memory) {
    outcome.note = absl::StrFormat("out of memory: %.1f GiB of %.1f; ", text::in_gib(most),
                                   text::in_gib(kP40Bytes)) +
                   outcome.note;
  } else {
    outcome.note += absl::StrFormat("; %.2f GiB of tensors at most", text::in_gib(planned.live));
    if (peaks.size() > 1) {
      outcome.note += absl::StrFormat(", %.1f reserved on a device", text::in_gib(most));
    }
  }
  outcome.origin = Origin::kPlanned;
}

// Explains a pipeline that is made anew, because the measured one is gone, and its memory with it.
Json explain(const MemoryRun& run, int64_t copies, const RunContext& context) {
  const MemoryLimit limit(limit_of_run(run.devices));
  const std::unique_ptr<Trainer> trainer = run.make_trainer();
  return explain_run(*trainer, run.input(run.batch_size, run.devices.front()),
                     run.target(run.batch_size, run.devices.back()), run.task().loss,
                     run.setup.schedule.make, static_cast<double>(copies), run.name, context);
}

void measure(MemoryRun run, int64_t copies, const CommonFlags& flags, Outcome& outcome,
             const RunContext& context) {
  Timeline timeline;
  if (!flags.trace.empty()) run.observer = timeline.observer();
  const MemoryFigures figures = run_memory(run, context);
  fill(figures, copies, /*out_of_memory=*/false, outcome);
  outcome.origin = Origin::kMeasured;
  if (!flags.trace.empty()) {
    write_trace(flags.trace, run.name, timeline, figures.routes, context.out);
  }
  if (flags.explain) outcome.settings["diagnosis"] = explain(run, copies, context);
}

RunVariant row(const MemoryExperiment& experiment, const CommonFlags& flags,
               const std::string& name, Origin way) {
  const MemoryVariant& variant = find_variant(experiment.variants, name);
  const bool planned = way == Origin::kPlanned;
  MemoryRun run =
      planned ? planned_run(experiment, variant) : measured_run(experiment, variant, flags);
  return [=, note = variant.note, copies = experiment.copies](Outcome& outcome,
                                                              const RunContext& context) {
    outcome.note = run.describe() + (planned ? "" : ", " + count_devices(run.devices)) +
                   (note.empty() ? "" : "; " + note);
    outcome.settings = run.settings();
    if (run.is_pipeline()) add_pipeline(run.setup, outcome.settings);
    if (planned) {
      outcome.settings["scale"] = to_text(Scale::kFull);
      plan(run, copies, outcome, context);
    } else {
      add_common(flags, run.devices, outcome.settings);
      measure(run, copies, flags, outcome, context);
    }
  };
}

// Whether some settings of the experiment's rows are assumed, because they were not published.
bool assumes(const MemoryExperiment& experiment) {
  return std::any_of(
      experiment.variants.begin(), experiment.variants.end(),
      [](const MemoryVariant& variant) { return variant.note.rfind("assumed: ", 0) == 0; });
}

}  // namespace

std::vector<Column> memory_columns(const std::vector<std::string>& parameters,
                                   const std::vector<std::string>& model_and_activations,
                                   const std::vector<std::string>& memory) {
  const auto column = [](const char* key, const char* heading,
                         const std::vector<std::string>& sources) {
    const bool compared = std::count(sources.begin(), sources.end(), "torchgpipe") > 0;
    return Column{key, heading, sources, compared ? "torchgpipe" : ""};
  };
  return {Column{"parameters", "parameters", parameters, ""},
          column("model_memory", "model memory (GiB)", model_and_activations),
          column("activation_memory", "peak activation memory (GiB)", model_and_activations),
          column("memory", "memory (GiB)", memory)};
}

std::string divide(const std::string& network, int64_t first_by, int64_t second_by,
                   int64_t least_first, int64_t least_second) {
  const std::vector<std::string> parts = absl::StrSplit(network, absl::ByAnyChar(":,"));
  int64_t first = 0;
  int64_t second = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &first) ||
      !absl::SimpleAtoi(parts[2], &second)) {
    throw std::invalid_argument(
        "only a network with two numbers, such as unet:24,128, can be divided, not " + network);
  }
  const auto rounded = [](int64_t value, int64_t divisor) {
    return (value + divisor / 2) / divisor;
  };
  first = std::max(rounded(first, first_by * least_first) * least_first, least_first);
  second = std::max(rounded(second, second_by), least_second);
  return absl::StrFormat("%s:%d,%d", parts[0], first, second);
}

ExperimentRun prepare_memory(const MemoryExperiment& experiment) {
  const CommonFlags flags = read_common_flags();
  if (flags.epochs) {
    throw std::invalid_argument(
        "--epochs: a memory experiment always trains two steps; leave it out");
  }
  ExperimentRun prepared;
  prepared.name = experiment.name;
  prepared.edition = experiment.edition;
  prepared.table = experiment.table;
  prepared.json = flags.json;
  prepared.remarks = experiment.remarks;
  prepared.variants = make_variants(
      flags, "all", names_of(experiment.variants), {Origin::kPlanned, Origin::kMeasured},
      [&experiment](const CommonFlags& own, const std::string& name, Origin way) {
        return row(experiment, own, name, way);
      });
  if (has_way(prepared.variants, Origin::kPlanned)) {
    prepared.remarks.push_back(absl::StrFormat(
        "Planned: the published network%s on the meta device; bytes that LibTorch's "
        "allocator would reserve on devices of %.1f GiB (Tesla P40), without cuDNN's workspaces.",
        assumes(experiment) ? ", with settings that are partly assumed (see the notes),"
                            : " and settings",
        text::in_gib(kP40Bytes)));
  }
  if (has_way(prepared.variants, Origin::kMeasured)) {
    prepared.remarks.push_back(
        "Measured: --scale=" + to_text(flags.scale) +
        "; on CUDA devices reserved bytes; on the CPU bytes of tensors, and all "
        "partitions on it are one device.");
  }
  return prepared;
}

}  // namespace gpipe::experiments
