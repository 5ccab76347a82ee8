// closest: "Did you mean ...?" for names that people type.
#ifndef GPIPE_TEXT_CLOSEST_H_
#define GPIPE_TEXT_CLOSEST_H_

#include <string>
#include <string_view>
#include <vector>

namespace gpipe::text {

// The candidate that equals the name except for case, "-", "_" and blanks; else, from four letters
// on, one that differs in a single letter ("device" of "devices"); else the first of which it is a
// word ("bfs" of "looped-bfs"); else the one that needs the fewest changes of a letter (insert,
// delete, replace, or two neighbors that change places), the first if there are several. Empty if
// that is more than a third of the letters.
std::string closest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace gpipe::text

#endif  // GPIPE_TEXT_CLOSEST_H_
