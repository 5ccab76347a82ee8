// wrong_usage: what the processes of a run have found wrong with how they were called.
//
// For programs that end with one exit code everywhere, and say once why.
#ifndef GPIPE_DISTRIBUTED_WRONG_USAGE_H_
#define GPIPE_DISTRIBUTED_WRONG_USAGE_H_

#include <string>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::distributed {

// All processes call it, each with what it has found wrong, or nothing. Returns in all of them what
// there is to say, nothing if all is well, and leaves it where torchrun looks for it. Throws
// DistributedFailure if a process fails.
//
// Who has found something may call it while the others are at another call, the making of a
// pipeline say. That throws Disagreement to all of them, and they are to come here after it.
//
// Example:
//   const std::string mistake = gpipe::distributed::wrong_usage(world, own_mistake);
//   if (!mistake.empty() && world.rank() == 0) std::cerr << mistake << "\n";
//   if (!mistake.empty()) return 2;
std::string wrong_usage(const World& world, const std::string& own);

// All processes call it, each with its settings as a text. Returns those of all, by rank, in all of
// them: what must be the same can be compared before anything is done. Throws as wrong_usage(),
// also Disagreement if others call that meanwhile.
std::vector<std::string> settings_of_ranks(const World& world, const std::string& own);

// What all have found as one text: that text, if all have the same; else each text with the ranks
// that have it.
std::string wrong_usage_text(const std::vector<std::string>& of_ranks);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_WRONG_USAGE_H_
