// svg_parts: the parts that all pictures share, namely texts, the style of everything but the data,
// and the marks of an axis.
#ifndef GPIPE_TIMELINE_SVG_PARTS_H_
#define GPIPE_TIMELINE_SVG_PARTS_H_

#include <string>

namespace gpipe::internal {

// A text of an SVG: &, < and > escaped, tabs and line breaks as spaces. Other control characters,
// and bytes that are not UTF-8, become U+FFFD, because with them no program would show the picture.
std::string svg_text(const std::string& text);

// The begin of a picture, up to its title: its size, `style` (CSS) and colors that suit light and
// dark pages.
std::string svg_begin(int width, int height, const std::string& style);
std::string svg_title(int x, const std::string& title);

// A field of a legend, with its name beside it. `paint` is an attribute, such as fill="#76a5d8".
// Returns the x of the next field.
int add_svg_key(const std::string& paint, const std::string& name, int x, std::string& svg);

// The distance of marks: 1, 2 or 5 times a power of ten, at least 1e-9, such that there are at most
// `count` marks up to `most`.
double distance_of_marks(double most, int count);

}  // namespace gpipe::internal

#endif  // GPIPE_TIMELINE_SVG_PARTS_H_
