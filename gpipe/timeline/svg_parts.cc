#include "gpipe/timeline/svg_parts.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

constexpr char kReplacement[] = "\uFFFD";

// Whether the code is a character of XML 1.0 and not a control character.
bool is_shown(uint32_t code) {
  return (code >= 0x20 && code < 0x7F) || (code >= 0xA0 && code < 0xD800) ||
         (code >= 0xE000 && code < 0xFFFE) || (code >= 0x10000 && code < 0x110000);
}

}  // namespace

std::string svg_text(const std::string& text) {
  std::string result;
  for (size_t k = 0; k < text.size();) {
    const text::Character character = text::character_at(text, k);
    const size_t bytes = character.bytes > 0 ? character.bytes : 1;
    switch (character.code) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\t':
      case '\n':
      case '\r':
        result += ' ';
        break;
      default:
        result +=
            character.bytes > 0 && is_shown(character.code) ? text.substr(k, bytes) : kReplacement;
    }
    k += bytes;
  }
  return result;
}

std::string svg_begin(int width, int height, const std::string& style) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>svg{background:#fff}text{fill:#222}line{stroke:#8888;stroke-width:.5}%s"
      "@media(prefers-color-scheme:dark){svg{background:#1c1c1c}text{fill:#ddd}}</style>\n",
      width, height, width, height, style);
}

std::string svg_title(int x, const std::string& title) {
  return absl::StrFormat("<text x=\"%d\" y=\"24\" font-size=\"15\">%s</text>\n", x,
                         svg_text(title));
}

int add_svg_key(const std::string& paint, const std::string& name, int x, std::string& svg) {
  absl::StrAppendFormat(&svg,
                        "<rect x=\"%d\" y=\"38\" width=\"11\" height=\"11\" %s/>"
                        "<text x=\"%d\" y=\"48\">%s</text>\n",
                        x, paint, x + 15, name);
  return x + 32 + 7 * static_cast<int>(name.size());
}

double distance_of_marks(double most, int count) {
  double unit = 1e-9;
  while (true) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (most / (unit * factor) <= count) return unit * factor;
    }
    unit *= 10;
  }
}

}  // namespace gpipe::internal
