// bits_of: the settings that a run's bits depend on. They are saved with its checkpoint, and
// compared when the run goes on.
//
// The layout is not part of them: stages, schedule, replicas, processes, checkpoint mode and
// devices may change (README.md, "One run, one hash").
#ifndef LANGUAGE_MODEL_BITS_H_
#define LANGUAGE_MODEL_BITS_H_

#include <cstdint>
#include <string>

#include "examples/common/bits.h"
#include "examples/language_model/settings.h"

namespace language_model {

// JSON with the flags and their values, defaults filled in. `threads`: the threads of each stage on
// the CPU; 0 if no stage is there.
std::string bits_of(const Settings& settings, int64_t threads);

// JSON with the flags that must be the same in all processes of a run: the flags of bits_of, and
// those that decide which calls are made, and when. Without --threads if it is left to the machine.
std::string shared_flags(const Settings& settings);

// Compares a run of these `bits` with the checkpoint that --resume names, if any. Throws
// std::invalid_argument if it would go on with other bits, unless --resume_anyway is given.
// `tells`: whether this process writes what differs, or is not known, to the terminal.
void check_resume(const Settings& settings, const std::string& bits, bool tells);

using examples::BitsDifference;
using examples::compare_bits;
using examples::difference_of_ranks;
using examples::flags_of_saved;
using examples::to_text;

}  // namespace language_model

#endif  // LANGUAGE_MODEL_BITS_H_
