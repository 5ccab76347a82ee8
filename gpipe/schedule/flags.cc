#include "gpipe/schedule/flags.h"

#include <cmath>
#include <cstdint>
#include <sstream>
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

double checked(double value, double least, const std::string& given) {
  if (std::isfinite(value) && value >= least) return value;
  std::ostringstream text;  // unlike std::to_string without zeros at the end
  text << given << ": give a finite number of at least " << least;
  throw std::invalid_argument(text.str());
}

int64_t checked(int64_t value, int64_t least, const std::string& given) {
  if (value >= least) return value;
  throw std::invalid_argument(given + ": give a whole number of at least " + std::to_string(least));
}

}  // namespace gpipe::internal
