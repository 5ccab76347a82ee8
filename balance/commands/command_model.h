// CommandModel: the model that a command of this package works on, from the zoo (zoo_model.h) or a
// user's own (own_model.h), and the other differences between the two.
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

// The most rows of a mini-batch.
inline constexpr int64_t kMostRows = int64_t{1} << 40;

// Makes tensors with that number of rows, on a device.
using MakeRows = std::function<Tensors(int64_t rows, c10::Device device)>;

// A value type.
struct CommandModel {
  std::string name;  // empty: a user's model without a name
  // The name in a saved profile. That of a zoo model also has the side of images, and whether the
  // head is tied.
  std::string saved_name;
  std::string given;  // how it was chosen, for messages: "--model=unet:5,64"
  std::function<torch::nn::Sequential()> make;
  // The same model in the worst case of what depends on values (NamedModel::make_worst), or null.
  std::function<torch::nn::Sequential()> make_worst;
  MakeRows inputs;
  MakeRows targets;
  LossFn loss;
  std::vector<int64_t> shared_inputs;  // as in a Training
  std::optional<int64_t> batch;        // the value of --batch, if it is given
  int64_t default_batch = 32;

  int64_t rows() const { return batch.value_or(default_batch); }
  // A name for messages, in one line.
  std::string title() const { return name.empty() ? "the model" : text::shown(name); }
  std::string saved_title() const {
    return saved_name.empty() ? "the model" : text::shown(saved_name);
  }

  // A mini-batch of rows() rows, on the meta device.
  Training training() const {
    return {make,         inputs(rows(), c10::kMeta), targets(rows(), c10::kMeta), loss, name,
            shared_inputs};
  }
  // Makes the model on the meta device. Throws std::invalid_argument if it has no layers.
  torch::nn::Sequential make_on_meta() const;
  // The number of the model's layers.
  int64_t layers() const { return static_cast<int64_t>(make_on_meta()->size()); }
  // Throws std::invalid_argument if the inputs have no values to measure with.
  void check_values() const { (void)inputs(/*rows=*/1, c10::kCPU); }
};

// The end of a message about too few layers: advice if there is only one, otherwise empty.
std::string one_layer_hint(int64_t layers);

// A family of models, of which the command finds the largest that fits. A value type.
struct ModelFamily {
  std::string name;  // empty: as in CommandModel
  // Returns member 1, 2, ...: each needs more memory than the member before it.
  std::function<CommandModel(int64_t member)> member;
  int64_t most = 0;

  std::string title() const { return name.empty() ? "the model" : text::shown(name); }
};

// The differences between a command for the zoo and one for a user's own model.
struct CommandFace {
  std::string examples;    // command lines for --help
  command::FlagSet flags;  // the flags that choose the model
  std::string profiling;   // the command that saves profiles of the same models
  // Called after the flags are read; throws for wrong flags. `profile`: the saved profile that the
  // command reads; then the model need not be known. Empty: none.
  std::function<CommandModel(const std::string& profile)> find_model;
  // Only for //balance:fit, called before find_model; may be null. Returns none for a single model.
  std::function<std::optional<ModelFamily>()> find_family;
};

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_COMMAND_MODEL_H_
