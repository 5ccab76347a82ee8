// CommandModel: the model that a command of this package is about, one of the zoo (zoo_model.h) or
// a user's own (own_model.h), and what else differs between the two.
#ifndef BALANCE_COMMANDS_COMMAND_MODEL_H_
#define BALANCE_COMMANDS_COMMAND_MODEL_H_

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "balance/choose/training.h"
#include "command/flags.h"
#include "gpipe/loss_fn.h"
#include "text/shown.h"

namespace gpipe::balance {

// Rows of tensors, on a device.
using MakeRows = std::function<Tensors(int64_t rows, c10::Device device)>;

// A value type.
struct CommandModel {
  std::string name;  // empty: a user's own that has none
  // In a saved profile; of the zoo it has the side of images, too, and whether the head is tied.
  std::string saved_name;
  std::string given;  // how it was chosen, for messages: "--model=unet:5,64"
  std::function<torch::nn::Sequential()> make;
  // Null, or the same for the worst case of what depends on values (NamedModel::make_worst).
  std::function<torch::nn::Sequential()> make_worst;
  MakeRows inputs;
  MakeRows targets;
  LossFn loss;
  std::vector<int64_t> shared_inputs;  // as of a Training
  std::optional<int64_t> batch;        // --batch, if it is given
  int64_t default_batch = 32;

  int64_t rows() const { return batch.value_or(default_batch); }
  // For messages: one line.
  std::string title() const { return name.empty() ? "the model" : text::shown(name); }
  std::string saved_title() const {
    return saved_name.empty() ? "the model" : text::shown(saved_name);
  }

  // A mini-batch of those rows, on meta.
  Training training() const {
    return {make,         inputs(rows(), c10::kMeta), targets(rows(), c10::kMeta), loss, name,
            shared_inputs};
  }
  // Makes it on the meta device. Throws std::invalid_argument if it has no layers.
  torch::nn::Sequential make_on_meta() const;
  // How many it has.
  int64_t layers() const { return static_cast<int64_t>(make_on_meta()->size()); }
  // Throws std::invalid_argument if there are no values to measure with.
  void check_values() const { (void)inputs(/*rows=*/1, c10::kCPU); }
};

// For the end of messages about too few layers: what to do if there is only one.
std::string one_layer_hint(int64_t layers);

// Models of which the largest that fits is wanted. A value type.
struct ModelFamily {
  std::string name;                                    // empty: as of a model
  std::function<CommandModel(int64_t member)> member;  // 1, 2, ...: each needs more than the last
  int64_t most = 0;

  std::string title() const { return name.empty() ? "the model" : text::shown(name); }
};

// What differs between a command for the zoo and one for a user's own model.
struct CommandFace {
  std::string examples;                      // for --help: lines
  command::AbsentFlags absent;               // the zoo's flags
  std::string profiling;                     // what saves profiles of the same models
  std::function<CommandModel()> find_model;  // once flags are read; throws for wrong ones
  // For //balance:fit, called before that; may be null. None: a single model is wanted.
  std::function<std::optional<ModelFamily>()> find_family;
};

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_COMMAND_MODEL_H_
