// PackedRows: packs pieces of documents into rows of tokens, on which a language model is trained.
//
// A row has several pieces side by side, which do not see each other. The rest of a row is padding,
// which does not count.
#ifndef COMMON_PACKED_ROWS_H_
#define COMMON_PACKED_ROWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "examples/common/token_loss.h"

namespace examples {

// The input of a model, and its targets: each [rows, length], whole numbers.
struct Batch {
  at::Tensor ids;
  at::Tensor documents;  // for each token the number of its piece; padding has its own
  at::Tensor targets;    // the next tokens; in padding kIgnored
  int64_t tokens = 0;    // how many targets count
};

// The mini-batches of a training run, epoch after epoch, or of a validation.
//
// Guarantees: the content of a mini-batch depends only on its number and the arguments of the
// constructor. So a run that is resumed goes on with the data that it would have had.
class PackedRows {
 public:
  // Writes one piece (a run of tokens of one document): its tokens to `ids`, and as many targets to
  // `targets`. `piece` counts from 0.
  using Fill = std::function<void(int64_t piece, int64_t* ids, int64_t* targets)>;

  // `lengths`: the tokens of each piece; `length`: the tokens of a row; `padding`: the token that
  // fills a row. `packed`: a row has several pieces, if they fit; otherwise it has one. In training
  // each epoch has the pieces in another order, drawn from the seed. Throws c10::ValueError if
  // there is no piece, or if a piece is longer than a row.
  PackedRows(std::vector<int64_t> lengths, int64_t length, int64_t padding, bool packed,
             uint64_t seed, Fill fill);

  // `rows` rows from row `first` on, counted from the beginning of the first epoch.
  Batch training(int64_t first, int64_t rows);
  // How many rows there are from row `first` to the end of its epoch.
  int64_t left_in_epoch(int64_t first);

  // The rows of a validation. They have each piece once, in the pieces' own order.
  // validation_rows() is their number, and validation() returns `rows` rows from row `first` on.
  int64_t validation_rows() const { return static_cast<int64_t>(in_order_.size()); }
  Batch validation(int64_t first, int64_t rows) const;

 private:
  using Row = std::vector<int64_t>;  // the numbers of pieces

  std::vector<Row> pack(const std::vector<int64_t>& order) const;
  std::vector<Row> epoch(int64_t number) const;
  void load_epoch_of(int64_t row);
  Batch batch(const std::vector<Row>& rows) const;

  std::vector<int64_t> lengths_;
  int64_t length_, padding_;
  bool packed_;
  uint64_t seed_;
  Fill fill_;
  std::vector<Row> in_order_;

  // The epoch that was used last.
  int64_t epoch_ = -1;
  int64_t begin_ = 0;  // the first row of that epoch
  std::vector<Row> rows_;
};

}  // namespace examples

#endif  // COMMON_PACKED_ROWS_H_
