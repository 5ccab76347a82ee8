// closest: "Did you mean ...?" for names on a command line.
#ifndef GPIPE_COMMAND_SUGGESTION_H_
#define GPIPE_COMMAND_SUGGESTION_H_

#include <string>
#include <vector>

namespace gpipe::command {

// The candidate that needs the fewest changes of a letter (insert, delete, replace; "-" and "_" are
// the same letter); the first if there are several. Empty if it needs changes of more than a third
// of the letters.
std::string closest(const std::string& name, const std::vector<std::string>& candidates);

// The names of a comma-separated list, each once, in the order of `known`; all of them for "all".
// Throws std::invalid_argument for an unknown name (with the closest one and all known ones), and
// for an empty list.
std::vector<std::string> select_names(const std::string& flag, const std::string& list,
                                      const std::vector<std::string>& known);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_SUGGESTION_H_
