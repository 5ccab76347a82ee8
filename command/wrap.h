// wrap: wraps text for people into lines.
#ifndef GPIPE_COMMAND_WRAP_H_
#define GPIPE_COMMAND_WRAP_H_

#include <cstddef>
#include <string>

namespace gpipe::command {

// Columns that the text takes on screen: continuation bytes of UTF-8 take none ("21.99±0.13").
std::size_t display_width(const std::string& text);

// The words of `text` in lines of at most `columns` columns; a longer word gets a line of its own.
// The first line is indented by `first`, the others by `rest`. Ends with a newline.
std::string wrap(const std::string& text, std::size_t columns, std::size_t first, std::size_t rest);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_WRAP_H_
