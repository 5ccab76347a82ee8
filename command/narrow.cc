#include "command/narrow.h"

#include <algorithm>
#include <sstream>

#include "command/progress.h"
#include "command/wrap.h"

namespace gpipe::command {

std::string narrow(const std::string& text, std::size_t columns) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (display_width(line) <= columns) {
      result += line + "\n";
      continue;
    }
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    result += wrap(line, columns, indent, indent + 2);
  }
  if (!result.empty()) result.pop_back();
  return result;
}

std::string narrow_on_terminal(const std::string& text, int file_descriptor) {
  if (!is_terminal(file_descriptor)) return text;
  constexpr int kLeast = 20, kMost = 80;
  const int width = std::clamp(terminal_options(file_descriptor).width, kLeast, kMost);
  return narrow(text, static_cast<std::size_t>(width));
}

}  // namespace gpipe::command
