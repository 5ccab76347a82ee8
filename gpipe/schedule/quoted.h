// quoted: how an error message shows a text that was given.
#ifndef GPIPE_SCHEDULE_QUOTED_H_
#define GPIPE_SCHEDULE_QUOTED_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace gpipe::internal {

// The text in quotes. A message ends at a zero byte and is read by people, so bytes that are not
// printable ASCII become \x00 to \xff, and only the first 80 characters of a long text are shown.
inline std::string quoted(std::string_view text) {
  constexpr size_t kMostShown = 80;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown = "'";
  for (char c : text.substr(0, kMostShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= ' ' && byte < 0x7f) {
      shown += c;
    } else {
      shown += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return shown + (text.size() > kMostShown ? "...'" : "'");
}

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_QUOTED_H_
