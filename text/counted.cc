#include "text/counted.h"

namespace gpipe::text {

std::string counted(int64_t count, std::string_view singular, std::string_view plural) {
  std::string result = std::to_string(count) + " ";
  if (count != 1 && !plural.empty()) return result.append(plural);
  return result.append(singular) + (count == 1 ? "" : "s");
}

}  // namespace gpipe::text
