#include "gpipe/distributed/control/agreement.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpipe/runtime/bytes.h"
#include "text/quoted.h"

namespace gpipe::distributed {
namespace {

using internal::kFieldEnd;
using internal::quoted;

const char* const kSameCalls = ": all ranks must make the same calls in the same order";

std::string name_of(int64_t rank) { return "rank " + std::to_string(rank); }

// A part of a text, which an `end` or the end of the text ends, and the position in the text at
// which the part begins.
struct Part {
  std::size_t begin;
  std::string text;
};
Part part_at(const std::string& text, std::size_t place, char end) {
  const std::size_t before = place == 0 ? std::string::npos : text.rfind(end, place - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return {begin, text.substr(begin, text.find(end, begin) - begin)};
}

// The value in quotes. A long value is cut to the part around `difference`.
std::string shown(const std::string& value, std::size_t difference) {
  constexpr std::size_t kLongest = 80;  // the length that quoted() shows whole
  if (value.size() <= kLongest) return quoted(value);
  const std::size_t begin = difference < kLongest / 2 ? 0 : difference - kLongest / 2;
  return (begin == 0 ? "" : "...") + quoted(value.substr(begin, kLongest)) +
         (begin + kLongest < value.size() ? "..." : "") + " (" + std::to_string(value.size()) +
         " bytes, from byte " + std::to_string(begin) + ")";
}

// The message for the values `a` and `b` of two ranks, which differ.
std::string difference_text(const std::string& name, int64_t rank_of_a, const std::string& a,
                            int64_t rank_of_b, const std::string& b) {
  const auto difference = static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin()).first -
      a.begin());
  const Part field = part_at(a, difference, kFieldEnd);
  if (!a.empty() && a.front() == kFieldEnd && field.begin > 1) {  // made by fields_text()
    return difference_text(part_at(a, field.begin - 1, kFieldEnd).text, rank_of_a, field.text,
                           rank_of_b, part_at(b, difference, kFieldEnd).text);
  }
  // If the values have several lines, the message names the first line that differs.
  const Part of_a = part_at(a, difference, '\n');
  const Part of_b = part_at(b, difference, '\n');
  const std::size_t place = difference - of_a.begin;
  const auto number = std::count(a.begin(), a.begin() + of_a.begin, '\n') + 1;
  const bool one_line = a.find('\n') == std::string::npos && b.find('\n') == std::string::npos;
  const std::string where =
      one_line ? "" : "line " + std::to_string(number) + " is the first that differs: ";
  return name + " must be the same on all ranks: " + where + name_of(rank_of_a) + " has " +
         shown(of_a.text, place) + ", " + name_of(rank_of_b) + " has " + shown(of_b.text, place);
}

std::string behind_text(int64_t behind, const Agreement::Words& of_behind, int64_t ahead,
                        const Agreement::Words& of_ahead) {
  const uint64_t calls = of_ahead.call - of_behind.call;
  const std::string next = std::to_string(of_ahead.call + 1);
  return name_of(behind) + " is " + std::to_string(calls) + (calls == 1 ? " call" : " calls") +
         " behind " + name_of(ahead) + ": it is in its call " + std::to_string(of_behind.call) +
         ", at " + quoted(of_behind.name) + ", and " + name_of(ahead) + " in its call " +
         std::to_string(of_ahead.call) + ", at " + quoted(of_ahead.name) +
         ". Each rank counts the calls of all ranks that it has begun, also those that failed, and "
         "one failed on " +
         name_of(ahead) + " before " + name_of(behind) +
         " came to it. Every rank that has not begun call " + next +
         " throws this, and all go on together with that call; until then the calls of " +
         name_of(behind) + " throw";
}

}  // namespace

std::optional<std::string> Agreement::add(int64_t rank, Words words) {
  const auto [own, is_new] = words_.insert({rank, std::move(words)});
  if (!is_new || decided_) return std::nullopt;
  // All ranks that came earlier have said the same, so it suffices to compare with the lowest of
  // them.
  const auto other = own == words_.begin() ? std::next(own) : words_.begin();
  if (other != words_.end()) {
    const auto& low = own->first < other->first ? *own : *other;
    const auto& high = own->first < other->first ? *other : *own;
    if (low.second.call != high.second.call) {
      decided_ = true;
      const auto& behind = low.second.call < high.second.call ? low : high;
      const auto& ahead = low.second.call < high.second.call ? high : low;
      given_up_ = ahead.second.call;
      return behind_text(behind.first, behind.second, ahead.first, ahead.second);
    }
    if (low.second.name != high.second.name) {
      decided_ = true;
      return name_of(low.first) + " is at " + quoted(low.second.name) + ", " + name_of(high.first) +
             " is at " + quoted(high.second.name) + kSameCalls;
    }
    if (low.second.is_collected != high.second.is_collected) {
      decided_ = true;
      const auto verb = [](const Words& call) {
        return call.is_collected ? " exchanges" : " compares";
      };
      return name_of(low.first) + verb(low.second) + " " + quoted(low.second.name) + ", " +
             name_of(high.first) + verb(high.second) + " it" + kSameCalls;
    }
    if (!low.second.is_collected && low.second.value != high.second.value) {
      decided_ = true;
      return difference_text(low.second.name, low.first, low.second.value, high.first,
                             high.second.value);
    }
  }
  if (!complete()) return std::nullopt;
  decided_ = agreed_ = true;
  return "";
}

std::vector<std::string> Agreement::take_values() {
  std::vector<std::string> values;
  if (!agreed_) return values;
  for (auto& [rank, words] : words_) {
    if (words.is_collected) values.push_back(std::move(words.value));
  }
  return values;
}

std::optional<std::string> Agreement::give_up(const std::string& waited) {
  if (decided_ || words_.empty() || words_.begin()->second.is_patient) return std::nullopt;
  decided_ = true;
  std::string missing;
  std::string waiting;
  for (int64_t rank = 0; rank < size_; ++rank) {
    std::string& list = words_.count(rank) == 0 ? missing : waiting;
    list += (list.empty() ? "" : ", ") + std::to_string(rank);
  }
  const auto are_several = [](const std::string& list) { return list.find(',') != list.npos; };
  return (are_several(missing) ? "ranks " : "rank ") + missing + " did not come to " +
         quoted(words_.begin()->second.name) + " within " + waited + ", where " +
         (are_several(waiting) ? "ranks " + waiting + " wait" : "rank " + waiting + " waits") +
         kSameCalls;
}

}  // namespace gpipe::distributed
