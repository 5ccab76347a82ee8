// PackedRows: a text as rows of tokens to train a language model on.
//
// Tokens are bytes, and one more that stands before and after each document. A document is learned
// from its own beginning: rows have several documents side by side, which do not see each other.
// The rest of a row is padding, which does not count.
#ifndef LANGUAGE_MODEL_DOCUMENTS_H_
#define LANGUAGE_MODEL_DOCUMENTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "examples/common/packed_rows.h"
#include "examples/common/token_loss.h"

namespace language_model {

inline constexpr int64_t kEnd = 256;  // the token between documents, and of padding
inline constexpr int64_t kVocabulary = 257;

enum class Documents : uint8_t {
  kLines,       // each line, with its newline
  kParagraphs,  // what empty lines separate
};

// The documents of a text, none of them empty. They point into the text.
std::vector<std::string_view> split(std::string_view text, Documents documents);

// A document as a model learns it, or a piece of a document that is longer than a row.
struct Piece {
  std::string_view document;
  int64_t begin = 0;  // the first token: 0 is kEnd, 1 the document's first byte
  int64_t tokens = 0;
};

// Documents cut into pieces of at most `length` tokens. A piece does not see the pieces before it.
std::vector<Piece> cut(const std::vector<std::string_view>& documents, int64_t length);

using examples::Batch;
using examples::kIgnored;

// The rows of a text. The text that pieces point into must outlive this object.
class PackedRows : public examples::PackedRows {
 public:
  PackedRows(const std::vector<Piece>& pieces, int64_t length, bool packed, uint64_t seed);
};

}  // namespace language_model

#endif  // LANGUAGE_MODEL_DOCUMENTS_H_
