// wrap: wraps text for people into lines.
#ifndef GPIPE_COMMAND_WRAP_H_
#define GPIPE_COMMAND_WRAP_H_

#include <cstddef>
#include <string>

namespace gpipe::command {

// Columns that the text takes on screen: continuation bytes of UTF-8 take none ("21.99±0.13").
std::size_t display_width(const std::string& text);

// Puts the words of `text` into lines of at most `columns` columns; a longer word gets a line of
// its own. The first line is indented by `first`, the others by `rest`. Ends with a newline.
std::string wrap(const std::string& text, std::size_t columns, std::size_t first, std::size_t rest);

// Wraps the lines of `text` that are wider than `columns` and keeps all others. Adjacent lines that
// are not indented are a paragraph: if one of them is too wide, the whole paragraph is filled anew.
// An indented line is a shell command: it is broken with backslashes, and its rest is indented by
// four more columns. Ends with a newline.
std::string wrap_lines(const std::string& text, std::size_t columns);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_WRAP_H_
