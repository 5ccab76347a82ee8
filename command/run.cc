#include "command/run.h"

#include <c10/util/Exception.h>

#include <csignal>
#include <new>

#include "command/command_line.h"
#include "command/wait_policy.h"
#include "text/exception_text.h"

namespace gpipe::command {

std::string message_of(const std::exception& error) { return text::message_of(error); }

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // LibTorch's CPU allocator throws no exception type of its own when memory runs out, so the text
  // decides.
  const std::string message = message_of(error);
  return message.find("can't allocate memory") != std::string::npos ||
         message.find("not enough memory") != std::string::npos;
}

int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<Work()>& prepare, const FlagSet& flags,
                const SaysOfMistake& says) {
  start_with_sleeping_threads(argc, argv);
  // SIGPIPE is ignored, because hours of work must not end if the reader of the output closes it
  // (as head does). Then only std::cout fails, and files are still written.
  std::signal(SIGPIPE, SIG_IGN);
  MainOptions options;
  options.version = version_text();
  options.flags = flags;
  options.code = [](const std::exception& error) {
    return dynamic_cast<const c10::ValueError*>(&error) != nullptr ? kUsageExitCode
                                                                   : exit_code_of(error);
  };
  options.message = message_of;
  options.says = says;
  return run_main(argc, argv, usage, prepare, options);
}

}  // namespace gpipe::command
