#include "command/wrap.h"

#include <algorithm>
#include <sstream>

namespace gpipe::command {

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string wrap(const std::string& text, std::size_t columns, std::size_t first,
                 std::size_t rest) {
  std::string result(first, ' ');
  std::size_t column = first;
  bool begun = false;  // this line already has a word
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t width = display_width(word);
    if (begun && column + 1 + width > columns) {
      result += "\n" + std::string(rest, ' ');
      column = rest;
      begun = false;
    }
    if (begun) {
      result += " ";
      ++column;
    }
    result += word;
    column += width;
    begun = true;
  }
  return result + "\n";
}

namespace {

std::string wrap_command(const std::string& line, std::size_t columns, std::size_t indent) {
  constexpr char kContinued[] = " \\";
  const std::string wrapped = wrap(line, columns - 2, indent, indent + 4);
  std::string result;
  for (std::size_t k = 0; k < wrapped.size(); ++k) {
    if (wrapped[k] == '\n' && k + 1 < wrapped.size()) result += kContinued;
    result += wrapped[k];
  }
  return result;
}

}  // namespace

std::string wrap_lines(const std::string& text, std::size_t columns) {
  std::string result;
  std::string paragraph;
  bool fits = true;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) result += fits ? paragraph : wrap(paragraph, columns, 0, 0);
    paragraph.clear();
    fits = true;
  };
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const bool line_fits = display_width(line) <= columns;
    if (indent == 0 && !line.empty()) {
      paragraph += line + "\n";
      fits = fits && line_fits;
      continue;
    }
    end_paragraph();
    result += line_fits ? line + "\n" : wrap_command(line, columns, indent);
  }
  end_paragraph();
  return result;
}

}  // namespace gpipe::command
