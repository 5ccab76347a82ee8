#include "balance/commands/fit_main.h"

#include "balance/commands/fit_command.h"
#include "balance/commands/own_model.h"

int gpipe::fit_main(int argc, const char* const* argv, const balance::MakeTraining& make_model) {
  return balance::fit_command(
      argc, argv,
      balance::own_face(argv[0],
                        "  PROGRAM --devices_gib=22,22,22,22\n"
                        "  PROGRAM --devices_gib=22,40 --chunks=8,16 --checkpoint=never",
                        make_model, /*note_loss=*/true));
}
