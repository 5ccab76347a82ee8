#include "gpipe/schedule/flags.h"

#include <stdexcept>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "gpipe/schedule/quoted.h"

namespace gpipe::internal {

void parse_flags(int argc, char** argv, const char* usage) {
  absl::SetProgramUsageMessage(usage);
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() <= 1) return;
  throw std::invalid_argument(quoted(words[1]) +
                              " is no flag: write --name=value; --help lists the flags");
}

}  // namespace gpipe::internal
