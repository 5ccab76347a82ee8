#include "balance/commands/balance_main.h"

#include "balance/commands/balance_command.h"
#include "balance/commands/own_model.h"

int gpipe::balance_main(int argc, const char* const* argv,
                        const balance::MakeTraining& make_model) {
  return balance::balance_command(
      argc, argv,
      balance::own_face(
          argv[0],
          "  PROGRAM --partitions=4 --chunks=8\n"
          "  PROGRAM --partitions=4 --save_profile=r.json\n"
          "  PROGRAM --profile=r.json --balance=3,5\n\n"
          "With --profile the default mini-batch has the profile's rows times --chunks.",
          make_model, /*note_loss=*/false));
}
