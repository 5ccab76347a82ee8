#include "command/run_without_torch.h"

#include <exception>
#include <iostream>
#include <stdexcept>

#include "command/exit_codes.h"
#include "command/flags.h"

namespace gpipe::command {

int run_without_torch(int argc, const char* const* argv, const std::string& usage,
                      const std::function<void()>& run) {
  const auto refuse = [](const std::exception& error, int code) {
    std::cerr << "error: " << error.what() << std::endl;
    return code;
  };
  try {
    const Request request =
        read_flags(argc, argv, usage, "GPipe for C++, no release yet", std::cout);
    if (request == Request::kRun) run();
    if (!std::cout.flush()) {
      throw std::runtime_error("the result cannot be written to standard output");
    }
    return 0;
  } catch (const std::invalid_argument& error) {
    return refuse(error, kUsageExitCode);
  } catch (const std::exception& error) {
    return refuse(error, kErrorExitCode);
  }
}

}  // namespace gpipe::command
