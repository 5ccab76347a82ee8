#include "balance/commands/cut_flags.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "balance/commands/command_model.h"
#include "command/balance_flag.h"
#include "command/wrong_value.h"

namespace gpipe::balance {

int64_t read_partitions(std::optional<int64_t> partitions, const std::vector<int64_t>& balance) {
  const auto given = static_cast<int64_t>(balance.size());
  const int64_t result = partitions.value_or(given);
  if (result == 0) {
    throw std::invalid_argument("give --partitions=NUMBER, or a cut with --balance=20,31");
  }
  if (given > 0 && given != result) {
    throw command::wrong_value("partitions", result, absl::StrCat("--balance has ", given));
  }
  return result;
}

void check_cut(int64_t partitions, const std::vector<int64_t>& balance, int64_t layers,
               const std::string& network) {
  const std::string hint = one_layer_hint(layers);
  if (partitions > layers) {
    throw command::wrong_value("partitions", partitions,
                               absl::StrCat(network, " has ", layers, " layers only", hint));
  }
  command::check_balance_sum(balance, layers, absl::StrJoin(balance, ","), network, hint);
}

}  // namespace gpipe::balance
