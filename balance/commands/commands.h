// balance_command, fit_command, memory_plan_command, plan_command: the planning commands.
// run_planning: one program of them.
#ifndef BALANCE_COMMANDS_COMMANDS_H_
#define BALANCE_COMMANDS_COMMANDS_H_

#include <functional>
#include <string>

#include "balance/commands/command_model.h"
#include "command/flags.h"
#include "command/run.h"

namespace gpipe::balance {

// Each reads its flags and those of the face, does what they ask for, and returns the exit code.
int balance_command(int argc, const char* const* argv, const CommandFace& face);
int fit_command(int argc, const char* const* argv, const CommandFace& face);
int memory_plan_command(int argc, const char* const* argv, const CommandFace& face);
int plan_command(int argc, const char* const* argv, const CommandFace& face);

// Runs the command of that name, with the face that `face_of` makes for it. Without a name, the
// first word may be the name; otherwise the command is "balance". Call it first in main.
//
// `program`: how the command is called, for --help.
int run_planning(
    int argc, const char* const* argv, const std::string& name,
    const std::function<CommandFace(const std::string& name, const std::string& program)>& face_of);

// Runs one of the commands with settings of its own: adds its flags, reads them and runs.
template <typename Settings>
int run_with(int argc, const char* const* argv, const std::string& purpose,
             const std::string& exit_codes, const CommandFace& face,
             void (*add_flags)(Settings&, command::FlagSet&, const CommandFace&),
             void (*read)(Settings&, const CommandFace&), int (*run)(const Settings&)) {
  Settings settings;
  command::FlagSet flags = face.flags;
  add_flags(settings, flags, face);
  const auto prepare = [&]() -> command::Work {
    read(settings, face);
    return [&] { return run(settings); };
  };
  return command::run_command(argc, argv, purpose + face.examples + exit_codes, prepare, flags);
}

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_COMMANDS_H_
