// A text that was given, as an error's message shows it. Inner to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_QUOTED_H_
#define GPIPE_SCHEDULE_QUOTED_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace gpipe::internal {

// In quotes. A message ends at a zero byte and is read by people, so what is not printable ASCII
// becomes \x00 to \xff, and of a long text the first 80 characters are shown.
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
