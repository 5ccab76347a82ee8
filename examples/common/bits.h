// BitsDifference: what is another between the settings that a run's bits depend on, as a checkpoint
// has them, and those of now; or between those of two ranks.
//
// A program writes its settings as JSON, a flag and its value each, defaults filled in.
#ifndef COMMON_BITS_H_
#define COMMON_BITS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

// "5 bytes, CRC-32 3610a686": what stands for a file, whose path does not count.
std::string content_of(const std::string& text);

// The differences between two such texts. A value type.
struct BitsDifference {
  struct Flag {
    std::string name, saved, now;
  };
  std::vector<Flag> flags;  // in the order of those of now
  // Flags that only one of the two has, because another version of this program has saved the
  // other.
  std::vector<std::string> unknown;
};
// Throws std::runtime_error if `saved` is not such a text.
BitsDifference compare_bits(const std::string& saved, const std::string& now);

// "--seed: 3 in the checkpoint, 4 now", a line for each.
std::string to_text(const BitsDifference& difference);
// The flags to give instead: "--seed=3 --nopacked".
std::string flags_of_saved(const BitsDifference& difference);

// "--seed must be the same on all ranks: rank 0 has 3, rank 2 has 4", a line for each flag, from
// the results of of_ranks on all ranks; empty if all are the same.
std::string difference_of_ranks(const std::vector<std::string>& of_ranks);

}  // namespace examples

#endif  // COMMON_BITS_H_
