// select_names: reads flags whose value is a list of names.
#ifndef GPIPE_COMMAND_SELECT_NAMES_H_
#define GPIPE_COMMAND_SELECT_NAMES_H_

#include <string>
#include <vector>

namespace gpipe::command {

// Returns the names of a comma-separated list, each once, in the order of `known`; "all" means all
// of them. Throws std::invalid_argument for an unknown name (with the closest one and all known
// ones), and for an empty list.
std::vector<std::string> select_names(const std::string& flag, const std::string& list,
                                      const std::vector<std::string>& known);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_SELECT_NAMES_H_
