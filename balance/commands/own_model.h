// own_face: what a command of this package is in a program with a model of its own: that of a
// Training, and a flag --batch.
#ifndef BALANCE_COMMANDS_OWN_MODEL_H_
#define BALANCE_COMMANDS_OWN_MODEL_H_

#include <optional>
#include <string>

#include "balance/choose/training.h"
#include "balance/commands/command_model.h"

namespace gpipe::balance {

// Cuts or repeats the rows of `training`'s mini-batch to as many as are wanted: by default, as many
// as it has. Without a loss it is the sum of the first output, as of plan().
//
// Throws std::invalid_argument if the Training lacks a model, or rows, or its targets have other
// rows than its inputs. The result's functions throw it if values are wanted of tensors on meta.
CommandModel own_model(const Training& training, std::optional<int64_t> batch);

// `program`: argv[0]. `examples`: command lines for --help, in which "PROGRAM" stands for its name.
// `make_model` is called once the flags are read. `note_loss`: say so if it gives no loss.
CommandFace own_face(const std::string& program, std::string examples, MakeTraining make_model,
                     bool note_loss);

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_OWN_MODEL_H_
