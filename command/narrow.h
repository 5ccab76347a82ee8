// narrow: puts the wide lines of a message into lines for a terminal.
#ifndef GPIPE_COMMAND_NARROW_H_
#define GPIPE_COMMAND_NARROW_H_

#include <cstddef>
#include <string>

namespace gpipe::command {

// Breaks each line that is wider than `columns` between words, and indents its rest by two columns
// more than the line. Other lines stay as they are. Does not end with a newline.
std::string narrow(const std::string& text, std::size_t columns);

// If the file descriptor is a terminal, narrows a message to at most 80 columns with narrow(). Any
// other file gets the text as it is, so that a message in a log is one line that can be searched.
std::string narrow_on_terminal(const std::string& text, int file_descriptor);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_NARROW_H_
