#include "experiments/resnet101_accuracy/settings.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

// At the smaller scales a micro-batch has this many images at least: batch norm needs some, and
// small operators cost more than they compute.
constexpr int64_t kLeastMicroBatch = 32;

// Layers of the flat ResNet: stem, blocks of eleven, tail.
constexpr int64_t kStemLayers = 4;
constexpr int64_t kBlockLayers = 11;
constexpr int64_t kTailLayers = 3;

int64_t sum(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

}  // namespace

const std::vector<Experiment>& published_experiments() {
  static const std::vector<int64_t> eight = {26, 22, 33, 44, 44, 66, 66, 69};
  static const std::vector<Experiment> experiments = {
      {"naive-128", Way::kNaive, 128, 32, 1, 1, {}},
      {"dataparallel-256", Way::kDataParallel, 256, 64, 2, 1, {}},
      // Four devices in torchgpipe's code, eight in its table.
      {"dataparallel-1k", Way::kDataParallel, 1024, 128, 4, 1, {}},
      {"pipeline-256", Way::kPipeline, 256, 64, 2, 4, {140, 230}},
      {"pipeline-1k", Way::kPipeline, 1024, 128, 8, 64, eight},
      {"pipeline-4k", Way::kPipeline, 4096, 192, 8, 64, eight},
  };
  return experiments;
}

std::vector<Experiment> find_experiments(const std::string& names) {
  if (names.empty() || names == "all") return published_experiments();
  std::vector<Experiment> found;
  std::stringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    if (name.rfind("gpipe-", 0) == 0) name.replace(0, 5, "pipeline");
    std::string known;
    bool matched = false;
    for (const Experiment& experiment : published_experiments()) {
      known += (known.empty() ? "" : ", ") + experiment.name;
      if (experiment.name != name) continue;
      found.push_back(experiment);
      matched = true;
    }
    if (!matched) {
      throw std::invalid_argument("there is no experiment '" + name + "'; there are " + known);
    }
  }
  return found;
}

Scale parse_scale(const std::string& text) {
  if (text == "smoke") return Scale::kSmoke;
  if (text == "small") return Scale::kSmall;
  if (text == "full") return Scale::kFull;
  throw std::invalid_argument("--scale=" + text + ": give smoke, small or full");
}

std::vector<int64_t> parse_balance(const std::string& text) {
  std::string list;
  for (char c : text) {
    if (c != '[' && c != ']' && std::isspace(static_cast<unsigned char>(c)) == 0) list += c;
  }
  std::vector<int64_t> balance;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) {
    char* end = nullptr;
    const int64_t value = std::strtoll(item.c_str(), &end, 10);
    if (item.empty() || *end != '\0' || value <= 0) {
      throw std::invalid_argument("--balance=" + text +
                                  ": give the layers of each partition, such as 20,31");
    }
    balance.push_back(value);
  }
  return balance;
}

std::string to_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

std::vector<int64_t> scale_balance(const std::vector<int64_t>& balance, int64_t layers) {
  const auto partitions = static_cast<int64_t>(balance.size());
  if (layers < partitions) {
    throw std::invalid_argument(std::to_string(layers) + " layers cannot be cut into " +
                                std::to_string(partitions) + " partitions");
  }
  // Rounds where partitions end, not how long they are: so the sum is right.
  std::vector<int64_t> scaled;
  int64_t done = 0;
  int64_t published = 0;
  for (int64_t j = 0; j < partitions; ++j) {
    published += balance[static_cast<std::size_t>(j)];
    const double share = static_cast<double>(published) / static_cast<double>(sum(balance));
    const int64_t end = std::clamp<int64_t>(std::llround(share * static_cast<double>(layers)),
                                            done + 1, layers - (partitions - 1 - j));
    scaled.push_back(end - done);
    done = end;
  }
  return scaled;
}

std::string Settings::network() const {
  if (blocks == std::vector<int64_t>{3, 4, 23, 3} && base_planes == 64) return "ResNet-101";
  return "ResNet " + to_text(blocks) + " of " + std::to_string(base_planes) + " planes";
}

int64_t Settings::layers() const { return kStemLayers + kBlockLayers * sum(blocks) + kTailLayers; }

Settings settle(const Experiment& experiment, Scale scale, const Overrides& overrides) {
  Settings settings;
  settings.published = experiment;
  settings.blocks = {3, 4, 23, 3};
  settings.batch_size = experiment.batch_size;
  settings.chunks = experiment.chunks;
  if (scale != Scale::kFull) {
    settings.blocks = {2, 2, 2, 2};
    settings.base_planes = 16;
    settings.image_size = 64;
    settings.enlarge = 2;
    settings.epochs = 9;
    settings.batch_size = experiment.scaled_batch_size;
    settings.reference_batch = 128;
    settings.weight_decay = 5e-4;
    settings.chunks =
        std::clamp<int64_t>(settings.batch_size / kLeastMicroBatch, 1, settings.chunks);
  }
  if (scale == Scale::kSmoke) {
    settings.blocks = {1, 1, 1, 1};
    settings.base_planes = 8;
    settings.epochs = 2;
    settings.limit_train = 15000;
    settings.flip = false;
    settings.decay = LrDecay::kLinear;
  }
  if (overrides.epochs > 0) settings.epochs = overrides.epochs;
  if (overrides.batch_size > 0) settings.batch_size = overrides.batch_size;
  if (overrides.limit_train > 0) settings.limit_train = overrides.limit_train;
  if (experiment.way != Way::kPipeline) {
    if (overrides.chunks > 0 || !overrides.balance.empty()) {
      throw std::invalid_argument("--chunks and --balance are for pipelines, not for " +
                                  experiment.name);
    }
    return settings;
  }
  if (overrides.chunks > 0) settings.chunks = overrides.chunks;
  settings.balance = scale_balance(experiment.balance, settings.layers());
  if (!overrides.balance.empty()) {
    if (sum(overrides.balance) != settings.layers()) {
      throw std::invalid_argument("--balance=" + to_text(overrides.balance) + " sums up to " +
                                  std::to_string(sum(overrides.balance)) + ", but " +
                                  settings.network() + " has " + std::to_string(settings.layers()) +
                                  " layers");
    }
    settings.balance = overrides.balance;
  }
  return settings;
}

}  // namespace gpipe::experiments
