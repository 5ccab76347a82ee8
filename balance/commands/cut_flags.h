// read_partitions, check_cut: the flags --partitions and --balance of commands that have both.
#ifndef BALANCE_COMMANDS_CUT_FLAGS_H_
#define BALANCE_COMMANDS_CUT_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::balance {

// The number of partitions: that of --partitions, or else that of --balance. Throws
// std::invalid_argument if neither flag is given, and if they differ.
int64_t read_partitions(std::optional<int64_t> partitions, const std::vector<int64_t>& balance);

// Throws std::invalid_argument for more partitions than `layers`, the layers of `network`, and for
// a balance that is not empty and does not sum up to them.
void check_cut(int64_t partitions, const std::vector<int64_t>& balance, int64_t layers,
               const std::string& network);

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_CUT_FLAGS_H_
