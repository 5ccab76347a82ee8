// quoted: shows, in an error message, a text that was given and should have been a number or a
// name.
#ifndef TEXT_QUOTED_H_
#define TEXT_QUOTED_H_

#include <string>
#include <string_view>

#include "text/shown.h"

namespace gpipe::internal {

// The text in quotes, with escapes for all bytes that are not printable ASCII. A long text is cut
// after 80 bytes.
inline std::string quoted(std::string_view text) {
  return text::quoted(text, text::Letters::kAscii);
}

}  // namespace gpipe::internal

#endif  // TEXT_QUOTED_H_
