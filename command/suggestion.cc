#include "command/suggestion.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpipe::command {
namespace {

// The Levenshtein distance.
std::size_t distance(const std::string& a, const std::string& b) {
  const auto same = [](char x, char y) {
    return x == y || (x == '-' && y == '_') || (x == '_' && y == '-');
  };
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (same(a[i - 1], b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string closest(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t least = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t changes = distance(name, candidate);
    if (changes < least) {
      least = changes;
      best = candidate;
    }
  }
  return best;
}

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
      const std::string meant = closest(name, known);
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
