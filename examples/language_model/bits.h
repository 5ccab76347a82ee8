// bits_of: the settings that a run's bits depend on. They are saved with its checkpoint, and
// compared when the run goes on.
//
// The layout is not part of them: stages, schedule, replicas, processes, checkpoint mode and
// devices may change (README.md, "One run, one hash").
#ifndef LANGUAGE_MODEL_BITS_H_
#define LANGUAGE_MODEL_BITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "examples/language_model/settings.h"

namespace language_model {

// JSON with the flags and their values, defaults filled in. `threads`: the threads of each stage on
// the CPU; 0 if no stage is there.
std::string bits_of(const Settings& settings, int64_t threads);

// The differences between two results of bits_of. A value type.
struct BitsDifference {
  struct Flag {
    std::string name, saved, now;
  };
  std::vector<Flag> flags;  // in the order of bits_of
  // Flags that only one of the two has, because another version of this program has saved the
  // other.
  std::vector<std::string> unknown;
};
// Throws std::runtime_error if `saved` is not a result of bits_of.
BitsDifference compare_bits(const std::string& saved, const std::string& now);

// "--seed: 3 in the checkpoint, 4 now", a line for each.
std::string to_text(const BitsDifference& difference);
// The flags to give instead: "--seed=3 --nopacked".
std::string flags_of_saved(const BitsDifference& difference);

// JSON with the flags that must be the same in all processes of a run: the flags of bits_of, and
// those that decide which calls are made, and when. Without --threads if it is left to the machine.
std::string shared_flags(const Settings& settings);
// "--seed must be the same on all ranks: rank 0 has 3, rank 2 has 4", a line for each flag, from
// the results of shared_flags on all ranks; empty if all are the same.
std::string difference_of_ranks(const std::vector<std::string>& shared_flags);

}  // namespace language_model

#endif  // LANGUAGE_MODEL_BITS_H_
