#include "command/balance_flag.h"

#include <stdexcept>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpipe::command {

std::vector<int64_t> parse_balance(const std::string& text) {
  absl::string_view list = absl::StripAsciiWhitespace(text);
  if (absl::ConsumePrefix(&list, "[") && !absl::ConsumeSuffix(&list, "]")) list = "?";
  std::vector<int64_t> balance;
  if (list.empty()) return balance;
  for (const absl::string_view item : absl::StrSplit(list, ',')) {
    int64_t layers = 0;
    if (!absl::SimpleAtoi(item, &layers) || layers <= 0) {
      throw std::invalid_argument("--balance=" + text +
                                  ": give the layers of each partition, at least 1, such as 20,31");
    }
    balance.push_back(layers);
  }
  return balance;
}

std::string to_text(const std::vector<int64_t>& numbers) {
  return "[" + absl::StrJoin(numbers, ", ") + "]";
}

}  // namespace gpipe::command
