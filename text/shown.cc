#include "text/shown.h"

namespace gpipe::text {
namespace {

// Whether a character is printed. Characters that reorder or separate lines are not: U+2028 to
// U+202E and U+2066 to U+2069.
bool is_printed(uint32_t code, Letters letters) {
  if (code < 0x20) {
    return letters == Letters::kAllOfLines && (code == '\n' || code == '\t' || code == '\r');
  }
  if (code < 0x7F) return true;
  if (letters == Letters::kAscii || code < 0xA0) return false;
  return !(code >= 0x2028 && code <= 0x202E) && !(code >= 0x2066 && code <= 0x2069);
}

}  // namespace

Character character_at(std::string_view text, size_t begin) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char first = byte(begin);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 0;
  if (bytes == 0 || first >= 0xF8 || begin + bytes > text.size()) return {};
  uint32_t code = first & (0x7Fu >> bytes);
  for (size_t k = begin + 1; k < begin + bytes; ++k) {
    if ((byte(k) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(k) & 0x3F);
  }
  // A character must not be written in more bytes than needed, must not be half of a surrogate
  // pair, and must not be larger than the largest code.
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || (code >= 0xD800 && code < 0xE000) || code >= 0x110000) return {};
  return {code, bytes};
}

size_t utf8_bytes(std::string_view text) {
  size_t k = 0;
  while (k < text.size()) {
    const size_t bytes = character_at(text, k).bytes;
    if (bytes == 0) break;
    k += bytes;
  }
  return k;
}

std::string shown(std::string_view text, Letters letters) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (size_t k = 0; k < text.size();) {
    const Character character = character_at(text, k);
    const size_t bytes = character.bytes > 0 ? character.bytes : 1;
    if (character.bytes > 0 && is_printed(character.code, letters)) {
      result += text.substr(k, bytes);
    } else {
      for (const char c : text.substr(k, bytes)) {
        const auto byte = static_cast<unsigned char>(c);
        result += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
      }
    }
    k += bytes;
  }
  return result;
}

std::string in_quotes(std::string_view text, Letters letters) {
  return "'" + shown(text, letters) + "'";
}

std::string quoted(std::string_view text, Letters letters) {
  constexpr size_t kMostShown = 80;
  size_t end = text.size();
  if (end > kMostShown) {
    end = kMostShown;
    // The cut must not be within a character.
    while (end > kMostShown - 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  return "'" + shown(text.substr(0, end), letters) + (end < text.size() ? "...'" : "'");
}

}  // namespace gpipe::text
