// What a run's bits depend on: saved with its checkpoint, and compared where the run goes on.
//
// Layouts are not part of it: stages, schedule, replicas, processes, checkpoint mode and devices
// may be others (README.md, "One run, one hash").
#ifndef LANGUAGE_MODEL_BITS_H_
#define LANGUAGE_MODEL_BITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "examples/language_model/settings.h"

namespace language_model {

// JSON: flags, and what they stand for, after defaults. `threads`: of each stage on the CPU; 0 if
// no stage is there.
std::string bits_of(const Settings& settings, int64_t threads);

// What differs between two of them. A value type.
struct BitsDifference {
  struct Flag {
    std::string name, saved, now;
  };
  std::vector<Flag> flags;  // in the order of bits_of
  // Flags that one of the two does not know, which another version of this program has saved.
  std::vector<std::string> unknown;
};
// Throws std::runtime_error if `saved` is nothing that bits_of has returned.
BitsDifference compare_bits(const std::string& saved, const std::string& now);

// "--seed: 3 in the checkpoint, 4 now", a line for each.
std::string to_text(const BitsDifference& difference);
// What to give instead: "--seed=3 --nopacked".
std::string flags_of_saved(const BitsDifference& difference);

// JSON: the flags that all processes of a run must have the same. Those of bits_of, and those that
// say which calls are made, and when. Not --threads where it is left to the machine.
std::string shared_flags(const Settings& settings);
// "--seed must be the same on all ranks: rank 0 has 3, rank 2 has 4", a line for each flag, of what
// shared_flags has returned on each rank; empty if all have the same.
std::string difference_of_ranks(const std::vector<std::string>& shared_flags);

}  // namespace language_model

#endif  // LANGUAGE_MODEL_BITS_H_
