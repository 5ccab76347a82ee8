// ResNet-101 accuracy: trains through a pipeline, with data parallelism and plainly, validates, and
// prints the table beside torchgpipe's. See README.md in this folder.

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_replace.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/frame/variants.h"
#include "experiments/resnet101_accuracy/published.h"
#include "experiments/resnet101_accuracy/run_experiment.h"
#include "experiments/resnet101_accuracy/settings.h"
#include "experiments/resnet101_accuracy/source.h"
#include "gpipe/saving/saving.h"
#include "machine/cores.h"

ABSL_FLAG(std::string, data, "",
          "imagenet:FOLDER (FOLDER/train/CLASS/*.JPEG and FOLDER/val/CLASS/*.JPEG), fashion-mnist, "
          "fashion-mnist:FOLDER, or fake (random images). Default: fashion-mnist; --scale=full has "
          "none.");
ABSL_FLAG(std::optional<int64_t>, limit_train, std::nullopt,
          "Train on this many images only. Default: the scale's (smoke 15000).");
ABSL_FLAG(
    std::optional<int64_t>, workers, std::nullopt,
    "Threads that load images. Default: 32 for imagenet (or as many as there are cores), else 1.");
ABSL_FLAG(
    std::string, checkpoint_dir, "",
    "Folder in which each experiment saves itself after every epoch. Default: none is saved.");
ABSL_FLAG(bool, resume, false,
          "Go on from the last finished epochs in --checkpoint_dir. Balance, devices and workers "
          "may differ from the run before; what changes the result may not.");
ABSL_FLAG(bool, overwrite, false, "Begin anew where --checkpoint_dir has an earlier run.");

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Trains ResNets plainly, with data parallelism and through a pipeline, validates\n"
    "after every epoch and prints top-1 error and throughput beside torchgpipe's\n"
    "published ones.\n\n"
    "  tools/bazel run //experiments/resnet101_accuracy\n"
    "  tools/bazel run //experiments/resnet101_accuracy -- \\\n"
    "    --experiment=pipeline-256 --scale=full --data=imagenet:/data/imagenet \\\n"
    "    --devices=cuda:0,cuda:1\n\n"
    "Experiments: naive-128, dataparallel-256, dataparallel-1k, pipeline-256,\n"
    "pipeline-1k, pipeline-4k (torchgpipe's names gpipe-* too). --scale=smoke runs\n"
    "naive-128, dataparallel-256, pipeline-256 and pipeline-1k unless told otherwise.\n"
    "Ctrl-C stops after the current step with what was reached (exit code 130).";

// The experiments at --scale=smoke: one of each kind and a deep pipeline, which two cores can do
// within a few minutes.
constexpr char kSmokeExperiments[] = "naive-128,dataparallel-256,pipeline-256,pipeline-1k";
// The number of loading processes of the published runs.
constexpr int64_t kPublishedWorkers = 32;
// The most threads that may load images. More would not be faster on any machine.
constexpr int64_t kMostWorkers = 1024;

std::string read_data(Scale scale) {
  std::string data = absl::GetFlag(FLAGS_data);
  if (!data.empty()) return data;
  if (scale != Scale::kFull) return "fashion-mnist";
  throw std::invalid_argument("--scale=full needs --data=imagenet:FOLDER (or --data=fake)");
}

AccuracyFlags read_flags() {
  AccuracyFlags flags;
  flags.common = read_common_flags();
  // torchgpipe's command line says "gpipe-256" for what its table calls "pipeline-256".
  flags.common.experiment = absl::StrReplaceAll(
      flags.common.experiment,
      {{"gpipe-256", "pipeline-256"}, {"gpipe-1k", "pipeline-1k"}, {"gpipe-4k", "pipeline-4k"}});
  flags.limit_train =
      command::in_range("limit_train", absl::GetFlag(FLAGS_limit_train), 1, int64_t{1} << 40);
  const int64_t cores = machine::usable_cores();
  const bool photographs = read_data(flags.common.scale).rfind("imagenet", 0) == 0;
  flags.workers = command::in_range("workers", absl::GetFlag(FLAGS_workers), 0, kMostWorkers)
                      .value_or(photographs ? std::min(kPublishedWorkers, cores) : 1);
  flags.state_folder = command::user_path(absl::GetFlag(FLAGS_checkpoint_dir));
  flags.resume = absl::GetFlag(FLAGS_resume);
  flags.overwrite = absl::GetFlag(FLAGS_overwrite);
  if (flags.state_folder.empty()) {
    if (flags.resume || flags.overwrite) {
      throw std::invalid_argument(std::string(flags.resume ? "--resume" : "--overwrite") +
                                  " needs the --checkpoint_dir of the run before");
    }
  } else {
    command::check_writable_folder("--checkpoint_dir", flags.state_folder);
  }
  if (flags.resume && flags.overwrite) {
    throw std::invalid_argument(
        "--resume and --overwrite contradict each other; leave one of them out");
  }
  return flags;
}

ExperimentRun prepare() {
  const AccuracyFlags flags = read_flags();
  // All experiments of a scale are trained on the same images.
  const Source source = open_source(
      read_data(flags.common.scale),
      settle(published_experiments().front(), flags.common, flags.limit_train), flags.common.seed);
  ExperimentRun prepared;
  prepared.name = "resnet101_accuracy";
  prepared.table = published_accuracy();
  prepared.variants =
      make_variants(flags.common, flags.common.scale == Scale::kSmoke ? kSmokeExperiments : "all",
                    names_of(published_experiments()), {Origin::kMeasured},
                    [&](const CommonFlags& common, const std::string& name, Origin /*way*/) {
                      AccuracyFlags own = flags;
                      own.common = common;
                      return make_run(own, find_variant(published_experiments(), name), source);
                    });
  if (flags.resume && std::none_of(prepared.variants.begin(), prepared.variants.end(),
                                   [&flags](const Variant& variant) {
                                     return has_checkpoint(state_folder(flags, variant.name));
                                   })) {
    throw std::invalid_argument(
        "--checkpoint_dir=" + flags.state_folder +
        " has none of these experiments to resume; leave out --resume, or name another folder");
  }
  prepared.remarks = {
      "Published: torchgpipe v0.0.5, ImageNet, ResNet-101, 90 epochs, on GPUs; reference-*: Goyal "
      "et al.",
      "Measured: --scale=" + to_text(flags.common.scale) +
          "; top-1 error after the last epoch, images/s of training with loading."};
  prepared.json = flags.common.json;
  if (!flags.state_folder.empty()) {
    prepared.when_stopped =
        "stopped; the same command with --resume goes on after the last finished epoch";
  }
  return prepared;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
