// wrong_usage: collects the errors that the processes of a run found in their command lines.
//
// It is for programs that end with the same exit code in all processes and print the reason once.
#ifndef GPIPE_DISTRIBUTED_WRONG_USAGE_H_
#define GPIPE_DISTRIBUTED_WRONG_USAGE_H_

#include <string>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::distributed {

// All processes call it, each with the error that it has found, or an empty text. Returns the text
// to print, the same in all processes, and empty if there is no error. Writes that text where
// torchrun looks for it. Throws DistributedFailure if a process fails.
//
// A process that has found an error may call it while the others make another call, e.g. construct
// a pipeline. That other call then throws Disagreement, and its callers must call this next.
//
// Example:
//   const std::string mistake = gpipe::distributed::wrong_usage(world, own_mistake);
//   if (!mistake.empty() && world.rank() == 0) std::cerr << mistake << "\n";
//   if (!mistake.empty()) return 2;
std::string wrong_usage(const World& world, const std::string& own);

// All processes call it, each with its settings as a text. Returns the settings of all processes,
// by rank, so that what must be the same can be compared before any work begins. Throws
// DistributedFailure if a process fails, Disagreement if others call wrong_usage() meanwhile.
std::vector<std::string> settings_of_ranks(const World& world, const std::string& own);

// The texts of all ranks as one text: if all ranks have the same text, that text; otherwise each
// text that is not empty, with the ranks that have it.
std::string wrong_usage_text(const std::vector<std::string>& of_ranks);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_WRONG_USAGE_H_
