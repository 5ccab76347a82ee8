#include "text/closest.h"

#include <algorithm>
#include <cstddef>

namespace gpipe::text {
namespace {

// The most letters of a name. A longer text is not a mistyped name, and comparing it would take
// time that grows with the square of its length.
constexpr std::size_t kMostLetters = 80;

bool separates(char c) { return c == '-' || c == '_' || c == ' '; }

// The words of a name, in small letters.
std::vector<std::string> words(std::string_view name) {
  std::vector<std::string> all = {""};
  for (const char c : name.substr(0, kMostLetters)) {
    if (separates(c)) {
      all.emplace_back();
    } else {
      all.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return all;
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += word;
  return all;
}

// The Levenshtein distance. Two neighbors that have changed places count as one change.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> changes(a.size() + 1,
                                                std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        changes[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = changes[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      changes[i][j] = std::min({changes[i - 1][j] + 1, changes[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        changes[i][j] = std::min(changes[i][j], changes[i - 2][j - 2] + 1);
      }
    }
  }
  return changes[a.size()][b.size()];
}

}  // namespace

std::string closest(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string given = joined(words(name));
  if (given.empty()) return "";
  const auto is = [&](const std::string& candidate) { return joined(words(candidate)) == given; };
  const auto has = [&](const std::string& candidate) {
    const std::vector<std::string> parts = words(candidate);
    return std::find(parts.begin(), parts.end(), given) != parts.end();
  };
  // A name with a single wrong letter is preferred to a longer name of which words are left out,
  // because a wrong letter is the likelier mistake.
  constexpr std::size_t kLettersOfAName = 4;
  const auto misses_a_letter = [&](const std::string& candidate) {
    return given.size() >= kLettersOfAName && distance(given, joined(words(candidate))) == 1;
  };
  auto found = std::find_if(candidates.begin(), candidates.end(), is);
  if (found == candidates.end()) {
    found = std::find_if(candidates.begin(), candidates.end(), misses_a_letter);
  }
  if (found == candidates.end()) found = std::find_if(candidates.begin(), candidates.end(), has);
  if (found != candidates.end()) return *found;
  std::string best;
  std::size_t least = std::max<std::size_t>(given.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t changes = distance(given, joined(words(candidate)));
    if (changes >= least) continue;
    least = changes;
    best = candidate;
  }
  return best;
}

}  // namespace gpipe::text
