#include "balance/commands/commands.h"

#include "command/wait_policy.h"

namespace gpipe::balance {
namespace {

struct Command {
  std::string name;
  int (*run)(int argc, const char* const* argv, const CommandFace& face);
};

}  // namespace

int run_planning(int argc, const char* const* argv, const std::string& name,
                 const std::function<CommandFace(const std::string& name,
                                                 const std::string& program)>& face_of) {
  // It may start the program once more, and so comes before the first word is taken off.
  command::start_with_sleeping_threads(argc, argv);
  const Command commands[] = {{"balance", balance_command},
                              {"fit", fit_command},
                              {"memory_plan", memory_plan_command},
                              {"plan", plan_command}};
  const std::string program = argv[0];
  const Command* chosen = commands;
  for (const Command& command : commands) {
    if (command.name == name) chosen = &command;
    if (!name.empty() || argc < 2 || command.name != argv[1]) continue;
    return command.run(argc - 1, argv + 1, face_of(command.name, program + " " + command.name));
  }
  CommandFace face = face_of(chosen->name, program);
  if (name.empty()) {
    face.examples +=
        "\n\nThe first word may name another command, which has its own --help: fit,\n"
        "memory_plan or plan.";
  }
  return chosen->run(argc, argv, face);
}

}  // namespace gpipe::balance
