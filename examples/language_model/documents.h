// PackedRows: a text as rows of tokens to train a language model on.
//
// Tokens are bytes, and one more that stands before and behind each document. A document is learned
// from its own beginning: rows have several of them side by side, which do not see each other, and
// what is left of a row is padding, which does not count.
#ifndef LANGUAGE_MODEL_DOCUMENTS_H_
#define LANGUAGE_MODEL_DOCUMENTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace language_model {

inline constexpr int64_t kEnd = 256;  // the token between documents; also padding's
inline constexpr int64_t kVocabulary = 257;
inline constexpr int64_t kIgnored = -100;  // the target of padding, as cross_entropy has it

enum class Documents : uint8_t {
  kLines,       // each line, with its newline
  kParagraphs,  // what empty lines separate
};

// The documents of a text, none of them empty. They point into it.
std::vector<std::string_view> split(std::string_view text, Documents documents);

// A document as a model learns it, or a piece of one that is longer than a row.
struct Piece {
  std::string_view document;
  int64_t begin = 0;  // the first token: 0 is kEnd, 1 the document's first byte
  int64_t tokens = 0;
};

// Documents cut into pieces of at most `length` tokens. A piece does not see those before it.
std::vector<Piece> cut(const std::vector<std::string_view>& documents, int64_t length);

// What a model is given, and what it shall say: each [rows, length], whole numbers.
struct Batch {
  at::Tensor ids;
  at::Tensor documents;  // of each token, its document's number in the row; padding has its own
  at::Tensor targets;    // the tokens behind; kIgnored in padding
  int64_t tokens = 0;    // that count
};

// The mini-batches of a training run, epoch after epoch, or of a validation.
//
// Guarantees: what is in a mini-batch follows from these arguments and its number alone, so that a
// run that is resumed goes on with the data that it would have had.
class PackedRows {
 public:
  // `packed`: several pieces in a row, if they fit; else one. In training each epoch has the pieces
  // in another order, drawn from the seed. The text that pieces point into must outlive this.
  PackedRows(std::vector<Piece> pieces, int64_t length, bool packed, uint64_t seed);

  // `rows` rows from row `first` on, counted from the begin of the first epoch.
  Batch training(int64_t first, int64_t rows);
  // How many rows there are from row `first` to the end of its epoch.
  int64_t left_in_epoch(int64_t first);

  // The same in the pieces' own order, each piece once: the rows, and these rows.
  int64_t validation_rows() const { return static_cast<int64_t>(in_order_.size()); }
  Batch validation(int64_t first, int64_t rows) const;

 private:
  using Row = std::vector<int64_t>;  // the numbers of pieces

  std::vector<Row> pack(const std::vector<int64_t>& order) const;
  std::vector<Row> epoch(int64_t number) const;
  void load_epoch_of(int64_t row);
  Batch batch(const std::vector<Row>& rows) const;

  std::vector<Piece> pieces_;
  int64_t length_;
  bool packed_;
  uint64_t seed_;
  std::vector<Row> in_order_;

  // The epoch that was used last.
  int64_t epoch_ = -1;
  int64_t begin_ = 0;  // its first row
  std::vector<Row> rows_;
};

}  // namespace language_model

#endif  // LANGUAGE_MODEL_DOCUMENTS_H_
