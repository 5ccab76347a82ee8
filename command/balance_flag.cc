#include "command/balance_flag.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "command/wrong_value.h"

namespace gpipe::command {

std::vector<int64_t> parse_balance(const std::string& text) {
  absl::string_view list = absl::StripAsciiWhitespace(text);
  if (absl::ConsumePrefix(&list, "[") && !absl::ConsumeSuffix(&list, "]")) list = "?";
  if (absl::StrContains(list, '|')) {
    throw wrong_value(
        "balance", text,
        "that is a layout of Megatron-LM, whose letters are kinds of layers; give "
        "the number of layers of each partition instead, at least 1, such as 2,4,1,2");
  }
  std::vector<int64_t> balance;
  if (list.empty()) return balance;
  for (const absl::string_view item : absl::StrSplit(list, ',')) {
    int64_t layers = 0;
    if (absl::SimpleAtoi(item, &layers) && layers == 0) {
      throw wrong_value(
          "balance", text,
          absl::StrCat("partition ", balance.size(),
                       " would have no layer; leave it out, as each needs at least 1"));
    }
    if (!absl::SimpleAtoi(item, &layers) || layers <= 0) {
      throw wrong_value("balance", text,
                        "give the layers of each partition, at least 1, such as 20,31");
    }
    balance.push_back(layers);
  }
  return balance;
}

void check_balance_sum(const std::vector<int64_t>& balance, int64_t layers,
                       const std::string& given, const std::string& network,
                       const std::string& hint) {
  // Each number is limited, so that the sum cannot overflow.
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t sum = 0;
  for (const int64_t count : balance) sum += std::min(count, kMost);
  if (balance.empty() || sum == layers) return;
  throw std::invalid_argument(absl::StrCat(flag_text("balance", given), " sums up to ", sum,
                                           ", but ", network, " has ", layers, " layers", hint));
}

std::string to_text(const std::vector<int64_t>& numbers) {
  return "[" + absl::StrJoin(numbers, ", ") + "]";
}

}  // namespace gpipe::command
