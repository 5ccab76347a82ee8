// BitsDifference: the differences between the settings on which a run's bits depend, in a
// checkpoint and now, or on two ranks.
//
// A program writes its settings as JSON: each flag with its value, defaults included.
#ifndef COMMON_BITS_H_
#define COMMON_BITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/world.h"

namespace examples {

// A text that stands for the content of a file, like "5 bytes, CRC-32 3610a686". The file's path
// does not matter.
std::string content_of(const std::string& text);

// The differences between the settings in two texts of JSON. A value type.
struct BitsDifference {
  struct Flag {
    std::string name, saved, now;
  };
  std::vector<Flag> flags;  // in the order of the present settings
  // Flags that only one of the two texts has, because another version of this program saved the
  // other text.
  std::vector<std::string> unknown;
};
// Throws std::runtime_error if `saved` is not a text of such JSON.
BitsDifference compare_bits(const std::string& saved, const std::string& now);

// A text with a line for each flag, like "--seed: 3 in the checkpoint, 4 now".
std::string to_text(const BitsDifference& difference);
// The flags with which the run would have the checkpoint's settings, like "--seed=3 --nopacked".
std::string flags_of_saved(const BitsDifference& difference);

// A text with a line for each flag, like "--seed must be the same on all ranks: rank 0 has 3, rank
// 2 has 4", from the results of of_ranks on all ranks. Empty if all are the same.
std::string difference_of_ranks(const std::vector<std::string>& of_ranks);

// Throws std::invalid_argument with that text if `flags`, JSON as above, differ between the
// processes, because the run would train wrongly without a message, or stop in the middle.
void expect_same_flags(const gpipe::World& processes, const std::string& flags);

}  // namespace examples

#endif  // COMMON_BITS_H_
