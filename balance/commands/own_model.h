// own_face: a command of this package for a program with a model of its own, which is given as a
// Training, with a flag --batch.
#ifndef BALANCE_COMMANDS_OWN_MODEL_H_
#define BALANCE_COMMANDS_OWN_MODEL_H_

#include <optional>
#include <string>

#include "balance/choose/training.h"
#include "balance/commands/command_model.h"

namespace gpipe::balance {

// Cuts or repeats the rows of `training`'s mini-batch to `batch` rows; none: the mini-batch's own
// number. Without a loss, the sum of the first output is the loss, as in plan().
//
// Throws std::invalid_argument if the Training has no model or no rows, or if its targets and
// inputs differ in their rows. The functions of the result throw it if they need values of tensors
// on the meta device.
CommandModel own_model(const Training& training, std::optional<int64_t> batch);

// `program`: argv[0]. `examples`: command lines for --help, in which "PROGRAM" stands for the
// program's name. `make_model` is called after the flags are read. `note_loss`: print a note if the
// Training has no loss.
CommandFace own_face(const std::string& program, std::string examples, MakeTraining make_model,
                     bool note_loss);

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_OWN_MODEL_H_
