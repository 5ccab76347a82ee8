#include "balance/commands/memory_plan_main.h"

#include "balance/commands/memory_plan_command.h"
#include "balance/commands/own_model.h"

int gpipe::memory_plan_main(int argc, const char* const* argv,
                            const balance::MakeTraining& make_model) {
  return balance::memory_plan_command(
      argc, argv,
      balance::own_face(argv[0],
                        "  PROGRAM --balance=3,5 --chunks=8 --optimizer=adam --svg=plan.svg",
                        make_model, /*note_loss=*/true));
}
