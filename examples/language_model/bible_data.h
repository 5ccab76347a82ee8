// decompress_bible: the King James Version as Debian's package bible-kjv-text has it.
//
// The package has one file, /usr/lib/bible.data, in a format that only its own reader (the program
// `bible`) knows. The text is public domain.
#ifndef LANGUAGE_MODEL_BIBLE_DATA_H_
#define LANGUAGE_MODEL_BIBLE_DATA_H_

#include <string>

namespace language_model {

// The path of the package's file.
inline constexpr char kBibleData[] = "/usr/lib/bible.data";

// Whether a file with these contents is in the package's format.
bool is_bible_data(const std::string& contents);

// Returns the text: a line for each verse, "Ge1:1 In the beginning God created the heaven and the
// earth.", after a line with a title. 4.4 MB.
//
// The file has: "EC02Compressed Data File", numbers of four bytes with the highest first (from byte
// 84: the size of a window's text, the number of windows, where each begins), and the windows, each
// a stream of compress(1) with codes of up to 16 bits, without its three bytes of header (Welch, "A
// Technique for High-Performance Data Compression", 1984). The last one ends with the file.
//
// Throws std::runtime_error with the reason for anything else, and for damaged contents.
std::string decompress_bible(const std::string& contents);

}  // namespace language_model

#endif  // LANGUAGE_MODEL_BIBLE_DATA_H_
