// Balance: balances of experiments at smaller scales, and how many layers there are to share.
#ifndef GPIPE_EXPERIMENTS_FRAME_BALANCE_H_
#define GPIPE_EXPERIMENTS_FRAME_BALANCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "command/balance_flag.h"
#include "models/by_name.h"

namespace gpipe::experiments {

using command::parse_balance;
using command::to_text;

// The number of a model's layers, without the memory that they take.
int64_t layers_of(const models::NamedModel& model);

// Scales `balance` to `layers` layers, with at least one layer per partition. Throws
// std::invalid_argument for fewer layers than partitions, and for a balance that is not valid.
std::vector<int64_t> scale_balance(const std::vector<int64_t>& balance, int64_t layers);

// `given`, the value of --balance; if that is empty, `published` in proportion. Throws
// std::invalid_argument if `given` does not sum up to the network's layers, or has another number
// of partitions: the figures would be those of another row.
std::vector<int64_t> choose_balance(const std::vector<int64_t>& given,
                                    const std::vector<int64_t>& published,
                                    const std::string& network, int64_t layers);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_BALANCE_H_
