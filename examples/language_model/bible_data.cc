#include "examples/language_model/bible_data.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace language_model {
namespace {

constexpr std::string_view kMagic = "EC02Compressed Data File";
constexpr size_t kNumbers = 84;  // where the numbers begin
constexpr uint32_t kLeastBits = 9;
constexpr uint32_t kMostBits = 16;
constexpr uint32_t kClear = 256;  // a code: forget all words except the single bytes
constexpr uint32_t kFirstWord = 257;
constexpr uint32_t kNone = kClear;  // no word

[[noreturn]] void damaged(const std::string& reason) {
  throw std::runtime_error("the file is damaged: " + reason);
}

uint32_t number_at(const std::string& contents, size_t place) {
  if (place + 4 > contents.size()) damaged("it ends within its header");
  uint32_t number = 0;
  for (size_t k = 0; k < 4; ++k) {
    number = number << 8U | static_cast<unsigned char>(contents[place + k]);
  }
  return number;
}

// Reads codes of 9 to 16 bits, the lowest bit first.
class Codes {
 public:
  explicit Codes(std::string_view bytes) : bytes_(bytes) {}

  std::optional<uint32_t> next(uint32_t bits) {
    if (bit_ + bits > bytes_.size() * 8) return std::nullopt;
    uint32_t code = 0;
    for (uint32_t k = 0; k < bits; ++k, ++bit_) {
      code |= (static_cast<unsigned char>(bytes_[bit_ / 8]) >> (bit_ % 8) & 1U) << k;
    }
    return code;
  }

  // compress(1) writes eight codes at a time. Before codes of another width the rest of a group of
  // eight must be skipped.
  void end_group(uint32_t bits) {
    const size_t group = size_t{8} * bits;
    begin_ += (bit_ - begin_ + group - 1) / group * group;
    bit_ = begin_;
  }

 private:
  std::string_view bytes_;
  size_t bit_ = 0;
  size_t begin_ = 0;  // the bit at which codes of this width begin
};

// Expands a stream and appends its text to `text`.
void expand(std::string_view stream, std::string& text) {
  struct Word {
    uint32_t before;  // the word that it prolongs
    char last;
  };
  std::vector<Word> words(size_t{1} << kMostBits);
  for (uint32_t byte = 0; byte < 256; ++byte) words[byte].last = static_cast<char>(byte);
  Codes codes(stream);
  uint32_t bits = kLeastBits, size = kFirstWord;
  uint32_t previous = kNone;
  std::string reversed;
  while (true) {
    if (size == uint32_t{1} << bits && bits < kMostBits) codes.end_group(bits++);
    const std::optional<uint32_t> code = codes.next(bits);
    if (!code) return;
    if (*code == kClear) {
      codes.end_group(bits);
      bits = kLeastBits;
      size = kFirstWord;
      previous = kNone;
      continue;
    }
    // A code may be the very word that this code makes known. Then the word is the previous word,
    // followed by the previous word's first byte.
    const bool unknown = previous != kNone && *code == size;
    if (*code >= size && !unknown) damaged("a code for no word");
    reversed.clear();
    uint32_t word = unknown ? previous : *code;
    for (; word > kClear; word = words[word].before) reversed.push_back(words[word].last);
    const char first = words[word].last;
    reversed.push_back(first);
    text.append(reversed.rbegin(), reversed.rend());
    if (unknown) text.push_back(first);
    if (previous != kNone && size < words.size()) words[size++] = {previous, first};
    previous = *code;
  }
}

}  // namespace

bool is_bible_data(const std::string& contents) {
  return contents.compare(0, kMagic.size(), kMagic) == 0;
}

std::string decompress_bible(const std::string& contents) {
  if (!is_bible_data(contents)) {
    throw std::runtime_error("it is not a file of Debian's package bible-kjv-text");
  }
  const size_t windows = number_at(contents, kNumbers + 4);
  std::string text;
  size_t begin = number_at(contents, kNumbers + 8);
  for (size_t k = 0; k < windows; ++k) {
    const size_t end =
        k + 1 < windows ? number_at(contents, kNumbers + 12 + 4 * k) : contents.size();
    if (begin > end || end > contents.size()) damaged("a window is not within it");
    expand(std::string_view(contents).substr(begin, end - begin), text);
    begin = end;
  }
  return text;
}

}  // namespace language_model
