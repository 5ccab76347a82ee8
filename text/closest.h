// closest: finds the name that a user may have meant, for "Did you mean ...?".
#ifndef GPIPE_TEXT_CLOSEST_H_
#define GPIPE_TEXT_CLOSEST_H_

#include <string>
#include <string_view>
#include <vector>

namespace gpipe::text {

// Returns the first of these that exists: (1) the candidate that equals the name except for case,
// "-", "_" and blanks; (2) if the name has four letters or more, a candidate that differs in a
// single letter ("device" of "devices"); (3) the first candidate of which it is a word ("bfs" of
// "looped-bfs"); (4) the first of the candidates that need the fewest changes of a letter (insert,
// delete, replace, or exchange two neighbors). Empty if these are more than a third of the letters.
std::string closest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace gpipe::text

#endif  // GPIPE_TEXT_CLOSEST_H_
