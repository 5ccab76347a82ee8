#include "examples/language_model/documents.h"

#include <algorithm>

namespace language_model {
namespace {

int64_t token(const Piece& piece, int64_t place) {
  const int64_t index = piece.begin + place - 1;
  const bool is_byte = index >= 0 && index < static_cast<int64_t>(piece.document.size());
  return is_byte ? static_cast<unsigned char>(piece.document[static_cast<size_t>(index)]) : kEnd;
}

// Removes the first document from the text, together with the separator behind it. Returns the
// document, with its own newline.
std::string_view take(std::string_view& text, Documents documents) {
  const std::string_view separator = documents == Documents::kLines ? "\n" : "\n\n";
  const size_t newline = text.find(separator);
  const size_t size = newline == std::string_view::npos ? text.size() : newline + 1;
  const std::string_view document = text.substr(0, size);
  text.remove_prefix(size);
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return document;
}

std::vector<int64_t> lengths_of(const std::vector<Piece>& pieces) {
  std::vector<int64_t> lengths;
  for (const Piece& piece : pieces) lengths.push_back(piece.tokens);
  return lengths;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, Documents documents) {
  std::vector<std::string_view> result;
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  while (!text.empty()) result.push_back(take(text, documents));
  return result;
}

std::vector<Piece> cut(const std::vector<std::string_view>& documents, int64_t length) {
  std::vector<Piece> pieces;
  for (const std::string_view document : documents) {
    // Each byte, and the end after them, must be predicted once.
    const auto tokens = static_cast<int64_t>(document.size()) + 1;
    for (int64_t begin = 0; begin < tokens; begin += length) {
      pieces.push_back({document, begin, std::min(length, tokens - begin)});
    }
  }
  return pieces;
}

PackedRows::PackedRows(const std::vector<Piece>& pieces, int64_t length, bool packed, uint64_t seed)
    : examples::PackedRows(lengths_of(pieces), length, kEnd, packed, seed,
                           [pieces](int64_t number, int64_t* ids, int64_t* targets) {
                             const Piece& piece = pieces[static_cast<size_t>(number)];
                             for (int64_t k = 0; k < piece.tokens; ++k) {
                               ids[k] = token(piece, k);
                               targets[k] = token(piece, k + 1);
                             }
                           }) {}

}  // namespace language_model
