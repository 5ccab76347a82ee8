// quoted: how an error message shows a text that was given and should have been a number or a name.
#ifndef TEXT_QUOTED_H_
#define TEXT_QUOTED_H_

#include <string>
#include <string_view>

#include "text/shown.h"

namespace gpipe::internal {

// The text in quotes, with its bytes where it is not printable ASCII; of a long one the first 80.
inline std::string quoted(std::string_view text) {
  return text::quoted(text, text::Letters::kAscii);
}

}  // namespace gpipe::internal

#endif  // TEXT_QUOTED_H_
