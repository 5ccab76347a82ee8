#include "gpipe/schedule/action.h"

#include <charconv>
#include <ostream>
#include <stdexcept>

#include "text/quoted.h"

namespace gpipe {
namespace {

// Reads a number in the form in which to_text() writes it: digits only, no leading zeros.
bool take_number(std::string_view text, int32_t* number) {
  if (text.empty() || (text.size() > 1 && text.front() == '0') || text.front() == '-') return false;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *number);
  return result.ec == std::errc() && result.ptr == end;
}

bool take_kind(char c, ActionKind* kind) {
  for (int k = 0; k < kActionKinds; ++k) {
    *kind = static_cast<ActionKind>(k);
    if (letter(*kind) == c) return true;
  }
  return false;
}

// The end of the error message for a text that uses reserved parts of the grammar: says what the
// part is reserved for. Empty if the text uses none.
std::string kept_for_later(std::string_view text) {
  struct Kept {
    char letter;
    const char* meaning;
  };
  constexpr Kept kKept[] = {
      {'G', "gathers of parameters"}, {'R', "reductions of gradients"}, {'C', "losses"}};
  const size_t dot = text.find('.');
  int32_t number = 0;
  if (dot == std::string_view::npos || dot == 0) return "";
  const std::string_view rest = text.substr(dot + 1);
  if (!take_number(text.substr(1, dot - 1), &number)) return "";
  ActionKind kind;
  const size_t second = rest.find('.');
  if (take_kind(text.front(), &kind) && second != std::string_view::npos &&
      take_number(rest.substr(0, second), &number) &&
      take_number(rest.substr(second + 1), &number)) {
    return "; a third number is reserved for slices of a sequence, which are not there yet";
  }
  if (!take_number(rest, &number)) return "";
  for (const Kept& kept : kKept) {
    if (text.front() != kept.letter) continue;
    return std::string("; ") + kept.letter + " is reserved for " + kept.meaning +
           ", which are not there yet";
  }
  return "";
}

}  // namespace

char letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 'F';
    case ActionKind::kBackward:
      return 'B';
    case ActionKind::kInputGradient:
      return 'I';
    case ActionKind::kWeightGradient:
      return 'W';
    case ActionKind::kOffload:
      return 'O';
    case ActionKind::kReload:
      return 'L';
  }
  throw std::invalid_argument("ActionKind " + std::to_string(static_cast<int>(kind)) +
                              " is not one of the six kinds of action: use kForward, kBackward, "
                              "kInputGradient, kWeightGradient, kOffload or kReload");
}

std::ostream& operator<<(std::ostream& out, ActionKind kind) {
  const auto number = static_cast<int>(kind);
  if (number < kActionKinds) return out << letter(kind);
  return out << "ActionKind(" << number << ")";
}

std::ostream& operator<<(std::ostream& out, const Action& action) {
  return out << action.kind << action.stage << "." << action.micro_batch;
}

std::string Action::to_text() const {
  return letter(kind) + std::to_string(stage) + "." + std::to_string(micro_batch);
}

Action Action::from_text(std::string_view text) {
  Action action;
  const size_t dot = text.find('.');
  if (text.empty() || dot == std::string_view::npos || !take_kind(text.front(), &action.kind) ||
      !take_number(text.substr(1, dot - 1), &action.stage) ||
      !take_number(text.substr(dot + 1), &action.micro_batch)) {
    throw std::invalid_argument(
        internal::quoted(text) +
        " is not an action: expected F, B, I, W, O or L, then the stage, a dot and the "
        "micro-batch, as in F0.3" +
        kept_for_later(text));
  }
  return action;
}

}  // namespace gpipe
