#include "command/select_names.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "text/closest.h"

namespace gpipe::command {

std::vector<std::string> select_names(const std::string& flag, const std::string& list,
                                      const std::vector<std::string>& known) {
  if (list == "all") return known;
  const std::string given = flag + "=" + list + ": ";
  const std::string choice = "there are " + absl::StrJoin(known, ", ") + ", and all";
  std::vector<bool> asked(known.size(), false);
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::string name(absl::StripAsciiWhitespace(part));
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      const std::string meant = text::closest(name, known);
      throw std::invalid_argument(given + "there is no '" + name + "'" +
                                  (meant.empty() ? "" : " (did you mean " + meant + "?)") + "; " +
                                  choice);
    }
    asked[static_cast<std::size_t>(found - known.begin())] = true;
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (asked[i]) names.push_back(known[i]);
  }
  return names;
}

}  // namespace gpipe::command
