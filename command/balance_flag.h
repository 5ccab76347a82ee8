// parse_balance: reads the --balance flag. to_text: writes a balance.
#ifndef GPIPE_COMMAND_BALANCE_FLAG_H_
#define GPIPE_COMMAND_BALANCE_FLAG_H_

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::command {

// Parses "140,230" or "[140, 230]"; an empty text gives an empty balance. Throws
// std::invalid_argument.
std::vector<int64_t> parse_balance(const std::string& text);

// Throws std::invalid_argument if a balance is not empty and does not sum up to `layers`, the
// layers of `network`: "--balance=`given` sums up to 51, but `network` has 52 layers`hint`".
void check_balance_sum(const std::vector<int64_t>& balance, int64_t layers,
                       const std::string& given, const std::string& network,
                       const std::string& hint = "");

// A balance as text: "[140, 230]".
std::string to_text(const std::vector<int64_t>& numbers);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_BALANCE_FLAG_H_
