#include "balance/commands/plan_main.h"

#include "balance/commands/own_model.h"
#include "balance/commands/plan_command.h"

int gpipe::plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model) {
  return balance::plan_command(
      argc, argv,
      balance::own_face(argv[0],
                        "  PROGRAM --devices=8 --memory=22GiB\n"
                        "  PROGRAM --devices=2 --measure=cpu --output=plan.json",
                        make_model, /*note_loss=*/true));
}
