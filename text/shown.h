// shown: makes a text that was given fit into one line of a message, a table or a terminal.
#ifndef TEXT_SHOWN_H_
#define TEXT_SHOWN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpipe::text {

// A character of a text in UTF-8.
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: no character begins here
};
// The character that begins at byte `begin`, which must be inside the text.
Character character_at(std::string_view text, size_t begin);

// The first byte with which no character begins; the number of bytes if the text is UTF-8.
size_t utf8_bytes(std::string_view text);

// The characters that shown() leaves as they are.
enum class Letters : uint8_t {
  kAll,        // any letter that is printed
  kAscii,      // ASCII only: some other characters look like a digit
  kAllOfLines  // any letter, tabs and line breaks
};

// The text with \x00 to \xff for each byte that does not belong to a printed letter. These are
// bytes that are not UTF-8, characters that reorder or break a line, and control characters: a zero
// would end a message, a line break would break a table, and other control characters change a
// terminal's colors.
std::string shown(std::string_view text, Letters letters = Letters::kAll);

// shown() in quotes, however long it is. It is for names, which must be whole to be found.
std::string in_quotes(std::string_view text, Letters letters = Letters::kAll);

// shown() in quotes. A long text is cut after 80 bytes, with "..." behind.
std::string quoted(std::string_view text, Letters letters = Letters::kAll);

}  // namespace gpipe::text

#endif  // TEXT_SHOWN_H_
