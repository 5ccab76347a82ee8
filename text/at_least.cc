#include "text/at_least.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

namespace gpipe::text {

double at_least(double least, double value, const std::string& given) {
  if (std::isfinite(value) && value >= least) return value;
  std::ostringstream text;  // writes no zeros at the end, as std::to_string would
  text << given << ": give a finite number of at least " << least;
  throw std::invalid_argument(text.str());
}

int64_t at_least(int64_t least, int64_t value, const std::string& given) {
  if (value >= least) return value;
  throw std::invalid_argument(given + ": give a whole number of at least " + std::to_string(least));
}

}  // namespace gpipe::text
