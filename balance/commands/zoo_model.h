// zoo_model: makes a network of the zoo (models/by_name.h) for the commands. Defines the flags
// --image_size and --tied.
#ifndef BALANCE_COMMANDS_ZOO_MODEL_H_
#define BALANCE_COMMANDS_ZOO_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "balance/commands/command_model.h"

namespace gpipe::balance {

// The value of --image_size, if it is given. Throws std::invalid_argument if it is below 1.
std::optional<int64_t> zoo_image_size();

// The folder of a model hf:FOLDER or hf:FOLDER,T that has weights, and not a config alone;
// otherwise empty.
std::string folder_with_weights(const std::string& name);

// Makes the network of that name, with --image_size and --tied. `weights`: the network gets the
// weights of its folder, if the folder has any, except on meta. Throws as models::model_by_name()
// and zoo_image_size().
CommandModel zoo_model(const std::string& name, std::optional<int64_t> batch, bool weights = false);

// Makes the network as zoo_model() does. Throws std::invalid_argument for an empty name, too, and
// lists the names.
CommandModel given_zoo_model(const std::string& name, std::optional<int64_t> batch,
                             bool weights = false);

// The help of a flag --model.
std::string zoo_help();

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_ZOO_MODEL_H_
