#include "command/run.h"

#include <c10/util/Exception.h>

#include <csignal>
#include <iostream>
#include <new>
#include <stdexcept>

#include "command/command_line.h"
#include "command/interrupt.h"
#include "command/wait_policy.h"

namespace gpipe::command {

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // LibTorch's allocator for the CPU has no type of its own for it.
  const std::string message = message_of(error);
  return message.find("can't allocate memory") != std::string::npos ||
         message.find("not enough memory") != std::string::npos;
}

int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<std::function<int()>()>& prepare, const AbsentFlags& absent,
                const SaysOfMistake& says) {
  start_with_sleeping_threads(argc, argv);
  const auto refuse = [](const std::exception& error, int code) {
    std::cerr << "error: " << message_of(error) << std::endl;
    return code;
  };
  const auto refuse_usage = [&](const std::exception& error) {
    const std::string text = says ? says(error) : message_of(error);
    if (!text.empty()) std::cerr << "error: " << text << std::endl;
    return kUsageExitCode;
  };
  // A reader that has seen enough (head) must not end hours of work: std::cout fails, and files are
  // still written.
  std::signal(SIGPIPE, SIG_IGN);
  std::function<int()> work;
  try {
    if (read_command_line(argc, argv, usage, std::cout, absent) == Request::kNothing) {
      return std::cout.flush() ? 0 : kErrorExitCode;
    }
    work = prepare();
  } catch (const std::invalid_argument& error) {
    return refuse_usage(error);
  } catch (const c10::ValueError& error) {
    return refuse_usage(error);
  } catch (const std::exception& error) {
    return refuse(error, kErrorExitCode);
  }
  try {
    const int code = work();
    if (code == 0 && !std::cout.flush()) {
      throw std::runtime_error("the result cannot be written to standard output");
    }
    return code;
  } catch (const Interrupted&) {
    return kInterruptedExitCode;
  } catch (const std::exception& error) {
    return refuse(error, kErrorExitCode);
  }
}

}  // namespace gpipe::command
