// zoo_model: makes a network of the zoo (models/by_name.h) for the commands. ZooFlags: the flags
// that choose it.
#ifndef BALANCE_COMMANDS_ZOO_MODEL_H_
#define BALANCE_COMMANDS_ZOO_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "balance/commands/command_model.h"
#include "command/flags.h"

namespace gpipe::balance {

// The values of --model, --batch, --image_size, --tied and --lora, in their ranges.
struct ZooFlags {
  std::string model;
  std::optional<int64_t> batch, image_size, lora;
  bool tied = false;

  // Adds the flags, which set this. The help of two of them may be the command's own.
  void add_to(command::FlagSet& flags, const std::string& model_help = zoo_help(),
              const std::string& batch_help = "Rows of a mini-batch.");
  // The help of a flag --model.
  static std::string zoo_help();
};

// The folder of a model hf:FOLDER or hf:FOLDER,T that has weights, and not a config alone;
// otherwise empty.
std::string folder_with_weights(const std::string& name);

// Makes the network of that name. `weights`: the network gets the weights of its folder, if the
// folder has any, except on meta. Throws as models::model_by_name(), and std::invalid_argument for
// adapters of a network that takes none.
CommandModel zoo_model(const ZooFlags& flags, bool weights = false);

// Makes the network as zoo_model() does. Throws std::invalid_argument for an empty name, too, and
// lists the names.
CommandModel given_zoo_model(const ZooFlags& flags, bool weights = false);

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_ZOO_MODEL_H_
