#include "experiments/resnet101_accuracy/settings.h"

#include <algorithm>

#include "experiments/frame/balance.h"

namespace gpipe::experiments {
namespace {

// At the smaller scales a micro-batch has at least this many images, because batch norm needs some,
// and small operators have more overhead than work.
constexpr int64_t kLeastMicroBatch = 32;

}  // namespace

const std::vector<Experiment>& published_experiments() {
  static const std::vector<int64_t> eight = {26, 22, 33, 44, 44, 66, 66, 69};
  static const std::vector<Experiment> experiments = {
      {"naive-128", Way::kNaive, 128, 32, 1, 1, {}},
      {"dataparallel-256", Way::kDataParallel, 256, 64, 2, 1, {}},
      // torchgpipe's code has four devices for this experiment, its table eight. This row is as in
      // the code.
      {"dataparallel-1k", Way::kDataParallel, 1024, 128, 4, 1, {}},
      {"pipeline-256", Way::kPipeline, 256, 64, 2, 4, {140, 230}},
      {"pipeline-1k", Way::kPipeline, 1024, 128, 8, 64, eight},
      {"pipeline-4k", Way::kPipeline, 4096, 192, 8, 64, eight},
  };
  return experiments;
}

Settings settle(const Experiment& experiment, const CommonFlags& flags,
                std::optional<int64_t> limit_train) {
  Settings settings;
  settings.published = experiment;
  settings.network = scaled_resnet(flags.scale);
  settings.batch_size = experiment.batch_size;
  settings.chunks = experiment.chunks;
  if (flags.scale != Scale::kFull) {
    settings.enlarge = 2;
    settings.epochs = 9;
    settings.batch_size = experiment.scaled_batch_size;
    settings.reference_batch = 128;
    settings.weight_decay = 5e-4;
    settings.chunks =
        std::clamp<int64_t>(settings.batch_size / kLeastMicroBatch, 1, settings.chunks);
  }
  if (flags.scale == Scale::kSmoke) {
    settings.epochs = 2;
    settings.limit_train = 15000;
    settings.flip = false;
    settings.decay = LrDecay::kLinear;
  }
  settings.epochs = flags.epochs.value_or(settings.epochs);
  settings.batch_size = flags.batch_size.value_or(settings.batch_size);
  settings.limit_train = limit_train.value_or(settings.limit_train);
  if (experiment.way != Way::kPipeline) return settings;
  settings.chunks = choose_chunks(flags, settings.chunks, settings.batch_size);
  settings.balance = choose_balance(flags.balance, experiment.balance, settings.network.name(),
                                    settings.network.layers());
  return settings;
}

}  // namespace gpipe::experiments
