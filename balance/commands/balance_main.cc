#include "balance/commands/balance_main.h"

#include <map>
#include <string>

#include "balance/commands/commands.h"
#include "balance/commands/own_model.h"

namespace gpipe {
namespace {

int own_main(int argc, const char* const* argv, const std::string& name,
             const balance::MakeTraining& make_model) {
  static const std::map<std::string, std::string> kExamples = {
      {"balance",
       "  PROGRAM --partitions=4 --chunks=8\n"
       "  PROGRAM --partitions=4 --save_profile=r.json\n"
       "  PROGRAM --profile=r.json --balance=3,5\n\n"
       "With --profile the default mini-batch has the profile's rows times --chunks."},
      {"fit",
       "  PROGRAM --devices_gib=22,22,22,22\n"
       "  PROGRAM --devices_gib=22,40 --chunks=8,16 --checkpoint=never"},
      {"memory_plan", "  PROGRAM --balance=3,5 --chunks=8 --optimizer=adam --svg=plan.svg"},
      {"plan",
       "  PROGRAM --devices=8 --memory=22GiB\n"
       "  PROGRAM --devices=2 --measure=cpu --output=plan.json"}};
  return balance::run_planning(
      argc, argv, name, [&](const std::string& command, const std::string& program) {
        const bool needs_loss = command != "balance";
        return balance::own_face(program, kExamples.at(command), make_model, needs_loss);
      });
}

}  // namespace
}  // namespace gpipe

int gpipe::balance_main(int argc, const char* const* argv,
                        const balance::MakeTraining& make_model) {
  return own_main(argc, argv, "", make_model);
}

int gpipe::fit_main(int argc, const char* const* argv, const balance::MakeTraining& make_model) {
  return own_main(argc, argv, "fit", make_model);
}

int gpipe::memory_plan_main(int argc, const char* const* argv,
                            const balance::MakeTraining& make_model) {
  return own_main(argc, argv, "memory_plan", make_model);
}

int gpipe::plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model) {
  return own_main(argc, argv, "plan", make_model);
}
