// PackedRows: a text as rows of tokens to train a language model on.
//
// Tokens are bytes, and one more that stands before and after each document. A document is learned
// from its own beginning: rows have several documents side by side, which do not see each other.
// The rest of a row is padding, which does not count.
#ifndef LANGUAGE_MODEL_DOCUMENTS_H_
#define LANGUAGE_MODEL_DOCUMENTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace language_model {

inline constexpr int64_t kEnd = 256;  // the token between documents, and of padding
inline constexpr int64_t kVocabulary = 257;
inline constexpr int64_t kIgnored = -100;  // the target of padding, as cross_entropy has it

enum class Documents : uint8_t {
  kLines,       // each line, with its newline
  kParagraphs,  // what empty lines separate
};

// The documents of a text, none of them empty. They point into the text.
std::vector<std::string_view> split(std::string_view text, Documents documents);

// A document as a model learns it, or a piece of one that is longer than a row.
struct Piece {
  std::string_view document;
  int64_t begin = 0;  // the first token: 0 is kEnd, 1 the document's first byte
  int64_t tokens = 0;
};

// Documents cut into pieces of at most `length` tokens. A piece does not see the pieces before it.
std::vector<Piece> cut(const std::vector<std::string_view>& documents, int64_t length);

// The input of a model, and its targets: each [rows, length], whole numbers.
struct Batch {
  at::Tensor ids;
  at::Tensor documents;  // for each token, its document's number in the row; padding has its own
  at::Tensor targets;    // the next tokens; kIgnored in padding
  int64_t tokens = 0;    // how many tokens count
};

// The mini-batches of a training run, epoch after epoch, or of a validation.
//
// Guarantees: the content of a mini-batch depends on the arguments of the constructor and its
// number alone, so a run that is resumed goes on with the data that it would have had.
class PackedRows {
 public:
  // `packed`: several pieces in a row, if they fit; otherwise one. In training each epoch has the
  // pieces in another order, drawn from the seed. The text that pieces point into must outlive this
  // object.
  PackedRows(std::vector<Piece> pieces, int64_t length, bool packed, uint64_t seed);

  // `rows` rows from row `first` on, counted from the begin of the first epoch.
  Batch training(int64_t first, int64_t rows);
  // How many rows there are from row `first` to the end of its epoch.
  int64_t left_in_epoch(int64_t first);

  // The same for a validation, in the pieces' own order, each piece once: the number of all rows,
  // and `rows` rows from row `first` on.
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
