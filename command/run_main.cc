#include "command/run_main.h"

#include <unistd.h>

#include <iostream>
#include <stdexcept>

#include "command/interrupt.h"
#include "command/made_folders.h"
#include "command/narrow.h"
#include "text/shown.h"

namespace gpipe::command {
namespace {

int end_with(int code, const std::string& text) {
  // The text is shown without control sequences for a terminal, which names and files of users may
  // contain.
  std::cerr << narrow_on_terminal("error: " + text::shown(text, text::Letters::kAllOfLines),
                                  STDERR_FILENO)
            << std::endl;
  return code;
}

}  // namespace

int exit_code_of(const std::exception& error) {
  return dynamic_cast<const std::invalid_argument*>(&error) != nullptr ? kUsageExitCode
                                                                       : kErrorExitCode;
}

int run_main(int argc, const char* const* argv, const std::string& usage,
             const std::function<Work()>& prepare, const MainOptions& options) {
  Work work;
  try {
    if (read_flags(argc, argv, usage, options.version, std::cout, options.flags) == Request::kRun) {
      work = prepare();
    }
  } catch (const std::exception& error) {
    const int code = options.code(error);
    if (code != kUsageExitCode) return end_with(code, options.message(error));
    const std::string text = options.says ? options.says(error) : options.message(error);
    // The folders are removed only after the call of `says`, which returns when all processes have
    // ended their checks.
    remove_made_folders();
    return text.empty() ? code : end_with(code, text);
  }
  tell_made_folders();
  try {
    const int code = work ? work() : 0;
    if (code == 0 && !std::cout.flush()) {
      throw std::runtime_error(
          "the result cannot be written to standard output; is the disk full, or was its reader "
          "closed?");
    }
    return code;
  } catch (const Interrupted&) {
    return kInterruptedExitCode;
  } catch (const std::exception& error) {
    return end_with(kErrorExitCode, options.message(error));
  }
}

int run_main(int argc, const char* const* argv, const std::string& usage, void (*run)()) {
  return run_main(argc, argv, usage, [run]() -> Work {
    run();
    return nullptr;
  });
}

}  // namespace gpipe::command
