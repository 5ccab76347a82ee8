#include "experiments/rows/memory_experiment.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "balance/memory/optimizer_flag.h"
#include "experiments/frame/balance.h"
#include "experiments/frame/devices.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/memory_limit.h"
#include "experiments/frame/trace.h"
#include "experiments/frame/trainer.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/explain_run.h"
#include "experiments/rows/memory_run.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/timeline/timeline.h"
#include "text/memory_size.h"

namespace gpipe::experiments {
namespace {

// The schedule of the published runs.
ScheduleChoice published_schedule() { return {"gpipe", Schedule::gpipe}; }

// What is run, and how it is described.
struct Settings {
  MemoryRun run;
  std::string note;  // the variant's note
  int64_t copies = 2;
};

Settings planned_settings(const MemoryExperiment& experiment, const MemoryVariant& variant) {
  Settings settings;
  settings.run.network = models::model_by_name(variant.network);
  settings.run.batch = experiment.batch;
  settings.run.setup =
      choose_setup(CommonFlags(), variant.balance, std::min(variant.chunks, experiment.batch),
                   variant.checkpoint, published_schedule());
  return settings;
}

Settings measured_settings(const MemoryExperiment& experiment, const MemoryVariant& variant,
                           const CommonFlags& flags) {
  Settings settings = planned_settings(experiment, variant);
  MemoryRun& run = settings.run;
  if (flags.scale != Scale::kFull) {
    const SmallNetwork small = experiment.shrink(variant, flags.scale);
    run.network = models::model_by_name(small.network, small.image_size);
    run.batch = small.batch;
  }
  run.batch = flags.batch_size.value_or(run.batch);
  if (!variant.balance.empty()) {
    const int64_t chunks = choose_chunks(flags, variant.chunks, run.batch);
    run.setup = choose_setup(
        flags,
        choose_balance(flags.balance, variant.balance, run.network.name, layers_of(run.network)),
        chunks, variant.checkpoint, published_schedule());
  }
  run.devices = choose_devices(
      flags, variant.name, std::max<int64_t>(static_cast<int64_t>(run.setup.balance.size()), 1));
  run.seed = flags.seed;
  return settings;
}

std::string describe(const Settings& settings) {
  const MemoryRun& run = settings.run;
  std::string text = absl::StrFormat("%s, %d x 3 x %d x %d", run.network.name, run.batch,
                                     run.network.row.at(1), run.network.row.at(2));
  if (!run.setup.balance.empty()) text += ", " + to_text(run.setup);
  if (!run.devices.empty()) text += ", " + count_devices(run.devices);
  return settings.note.empty() ? text : text + "; " + settings.note;
}

Json settings_of(const Settings& settings, const CommonFlags& flags, Origin way) {
  const MemoryRun& run = settings.run;
  Json json = {{"network", run.network.name},
               {"batch_size", run.batch},
               {"image_size", run.network.row.at(1)}};
  if (!run.setup.balance.empty()) add_pipeline(run.setup, json);
  if (way == Origin::kMeasured) {
    add_common(flags, run.devices, json);
  } else {
    json["scale"] = to_text(Scale::kFull);
  }
  return json;
}

// Fills in the figures. If memory ran out, these are the parameters and the model's memory only.
void fill(const Settings& settings, const MemoryFigures& figures, bool out_of_memory,
          Outcome& outcome) {
  const int64_t model = settings.copies * figures.parameter_bytes;
  outcome.figures["parameters"] = static_cast<double>(figures.parameters);
  outcome.figures["model_memory"] = text::in_gib(model);
  outcome.settings["peak_bytes"] = figures.peaks;
  if (out_of_memory) return;
  outcome.figures["activation_memory"] = text::in_gib(figures.total() - model);
  outcome.figures["memory"] = text::in_gib(figures.total());
}

void plan(const Settings& settings, Outcome& outcome, const RunContext& context) {
  const PlannedMemory planned = plan_memory(settings.run, kP40Bytes, [&] { context.check(); });
  outcome.settings["capacity_bytes"] = kP40Bytes;
  outcome.settings["live_bytes"] = planned.live;
  fill(settings, planned.figures, planned.out_of_memory, outcome);
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
Json explain(const Settings& settings, const std::string& name, const RunContext& context) {
  const MemoryRun& run = settings.run;
  const PipelineSetup& setup = run.setup;
  const Task task = task_of(run.network, run.seed);
  const MemoryLimit limit(limit_of_run(run.devices));
  const std::unique_ptr<Trainer> trainer =
      setup.balance.empty()
          ? make_naive_trainer(task, run.devices.front())
          : make_pipeline_trainer(task, pipeline_options(setup, run.devices), setup.schedule.make);
  return explain_run(*trainer, models::random_input(run.network, run.batch, run.devices.front()),
                     models::random_target(run.network, run.batch, run.devices.back()), task.loss,
                     setup.schedule.make, static_cast<double>(settings.copies), name, context);
}

void measure(Settings settings, const CommonFlags& flags, const std::string& name, Outcome& outcome,
             const RunContext& context) {
  Timeline timeline;
  if (!flags.trace.empty()) settings.run.observer = timeline.observer();
  const MemoryFigures figures = run_memory(settings.run, [&] { context.check(); });
  fill(settings, figures, /*out_of_memory=*/false, outcome);
  outcome.origin = Origin::kMeasured;
  if (!flags.trace.empty()) {
    write_trace(flags.trace, name, timeline, figures.routes, context.out);
  }
  if (flags.explain) outcome.settings["diagnosis"] = explain(settings, name, context);
}

RunVariant runner(const std::string& name, Settings settings, const CommonFlags& flags,
                  Origin way) {
  return [name, settings = std::move(settings), flags, way](Outcome& outcome,
                                                            const RunContext& context) {
    outcome.note = describe(settings);
    outcome.settings = settings_of(settings, flags, way);
    way == Origin::kPlanned ? plan(settings, outcome, context)
                            : measure(settings, flags, name, outcome, context);
  };
}

// Whether some settings of the experiment's rows are assumed, because they were not published.
bool assumes(const MemoryExperiment& experiment) {
  return std::any_of(
      experiment.variants.begin(), experiment.variants.end(),
      [](const MemoryVariant& variant) { return variant.note.rfind("assumed: ", 0) == 0; });
}

// Refuses flags that would be ignored.
void check(const CommonFlags& flags) {
  if (flags.epochs) {
    throw std::invalid_argument(
        "--epochs: a memory experiment always trains two steps; leave it out");
  }
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
  check(flags);
  ExperimentRun prepared;
  prepared.name = experiment.name;
  prepared.edition = experiment.edition;
  prepared.table = experiment.table;
  prepared.json = flags.json;
  prepared.remarks = experiment.remarks;
  prepared.variants = make_variants(
      flags, "all", names_of(experiment.variants), {Origin::kPlanned, Origin::kMeasured},
      [&experiment](const CommonFlags& own, const std::string& name, Origin way) {
        const MemoryVariant& variant = find_variant(experiment.variants, name);
        Settings settings = way == Origin::kPlanned ? planned_settings(experiment, variant)
                                                    : measured_settings(experiment, variant, own);
        settings.run.optimizer = balance::parse_optimizer(experiment.optimizer);
        settings.copies = experiment.copies;
        settings.note = variant.note;
        return runner(name, std::move(settings), own, way);
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
