#include "gpipe/distributed/meet/slurm_lists.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace gpipe::distributed {
namespace {

// The greatest number of hosts, more than any cluster has. The limit keeps a damaged text from
// costing memory.
constexpr int64_t kMostEntries = 65536;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_count(std::size_t entries) {
  if (static_cast<int64_t>(entries) > kMostEntries) refuse("more than 65536 entries");
}

int64_t number(std::string_view digits) {
  constexpr std::size_t kMostDigits = 15;  // so that numbers can be incremented and added up
  int64_t value = 0;
  if (digits.size() > kMostDigits) {
    refuse("'" + std::string(digits.substr(0, 20)) + "...' has too many digits");
  }
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) {
    refuse("a number was expected where '" + std::string(digits.substr(0, 20)) + "' stands");
  }
  return value;
}

// Splits the text at commas outside of brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !inside)) {
      if (i == begin) refuse("an entry is empty");
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[' || text[i] == ']') {
      if (inside == (text[i] == '[')) refuse("its brackets do not match");
      inside = text[i] == '[';
    }
  }
  if (inside) refuse("its brackets do not match");
  return parts;
}

// Expands "03-05,7" to 03, 04, 05, 7. Numbers are padded to the width of the range's first number.
std::vector<std::string> expand_ranges(std::string_view text) {
  std::vector<std::string> values;
  for (const std::string_view range : split(text)) {
    const std::size_t dash = range.find('-');
    const std::string_view from = range.substr(0, dash);
    const int64_t first = number(from);
    const int64_t last = dash == std::string_view::npos ? first : number(range.substr(dash + 1));
    if (last < first) refuse("the range '" + std::string(range.substr(0, 40)) + "' ends first");
    if (last - first >= kMostEntries) refuse("more than 65536 entries");
    for (int64_t value = first; value <= last; ++value) {
      std::string digits = std::to_string(value);
      if (digits.size() < from.size()) digits.insert(0, from.size() - digits.size(), '0');
      values.push_back(std::move(digits));
    }
    check_count(values.size());
  }
  return values;
}

std::vector<std::string> expand_name(std::string_view name) {
  constexpr std::ptrdiff_t kMostGroups = 8;
  if (std::count(name.begin(), name.end(), '[') > kMostGroups) refuse("too many brackets");
  const std::size_t open = name.find('[');
  if (open == std::string_view::npos) return {std::string(name)};
  const std::size_t close = name.find(']', open);  // split() has checked that there is one
  const std::vector<std::string> values = expand_ranges(name.substr(open + 1, close - open - 1));
  const std::vector<std::string> rests = expand_name(name.substr(close + 1));
  check_count(values.size() * rests.size());
  std::vector<std::string> names;
  for (const std::string& value : values) {
    for (const std::string& rest : rests) {
      names.push_back(std::string(name.substr(0, open)) + value + rest);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view text) {
  const auto is_of_a_host = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::all_of(text.begin(), text.end(), is_of_a_host)) {
    refuse("it has characters that no host's name has");
  }
  std::vector<std::string> hosts;
  for (const std::string_view name : split(text)) {
    for (std::string& host : expand_name(name)) hosts.push_back(std::move(host));
    check_count(hosts.size());
  }
  return hosts;
}

std::vector<int64_t> expand_tasks_per_node(std::string_view text) {
  std::vector<int64_t> tasks;
  for (const std::string_view part : split(text)) {
    const std::size_t times = part.find("(x");
    int64_t count = 1;
    if (times != std::string_view::npos) {
      if (part.back() != ')') refuse("its brackets do not match");
      count = number(part.substr(times + 2, part.size() - times - 3));
      if (count > kMostEntries) refuse("more than 65536 entries");
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(count), number(part.substr(0, times)));
    check_count(tasks.size());
  }
  return tasks;
}

}  // namespace gpipe::distributed
