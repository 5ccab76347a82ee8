// MiniBatch: how the rows of the caller's tensors are cut into micro-batches and joined again.
#ifndef GPIPE_INTERNAL_BATCH_MINI_BATCH_H_
#define GPIPE_INTERNAL_BATCH_MINI_BATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

// A value type that knows numbers of rows and no tensors.
class MiniBatch {
 public:
  MiniBatch() = default;
  MiniBatch(int64_t rows, int64_t chunks);  // cut as micro_batch_sizes() says
  // Part `part` of `parts` of such a mini-batch: its share of the chunks, and the rows in them
  // (maybe no rows). Micro-batches and rows are counted from the beginning of the part.
  //
  // Requirements: `parts` divides `chunks`.
  MiniBatch(int64_t rows, int64_t chunks, int64_t part, int64_t parts);

  int64_t rows() const { return rows_; }
  int64_t micro_batches() const { return static_cast<int64_t>(sizes_.size()); }
  const std::vector<int64_t>& sizes() const { return sizes_; }  // [micro-batch] number of rows

  // The rows of micro-batch i of a tensor with as many rows as the mini-batch. The result covers
  // the tensor's storage, is detached, and is not a view for autograd. An undefined tensor stays
  // undefined. Throws c10::ValueError for a part of a tensor that is not strided (e.g. a sparse
  // one).
  at::Tensor slice(const at::Tensor& whole, int64_t i) const;
  std::vector<at::Tensor> slice(const std::vector<at::Tensor>& whole, int64_t i) const;
  // The gradients of micro-batch i. They need no alias: with a single micro-batch they are returned
  // as they are.
  Packet slice_gradients(const std::vector<at::Tensor>& whole, int64_t i) const;

  // Throws c10::ValueError if `piece`, which is output number `output` of micro-batch i, does not
  // have one entry for each row: it is a scalar, or has another number of rows than the
  // micro-batch. If all parts together have a single micro-batch, everything is accepted.
  void check_rows(const at::Tensor& piece, size_t output, int64_t i) const;

  // Concatenates the micro-batches' outputs along dimension 0 (a single one is returned as it is).
  // Outputs that are the same tensor stay the same tensor; otherwise they share no memory. Throws
  // c10::ValueError for what check_rows() refuses, and for values that differ in number or in
  // definedness. Returns an empty list if there are no micro-batches.
  std::vector<at::Tensor> join(const std::vector<Packet>& outputs) const;
  // The gradient of a tensor that was cut, from the gradients of its micro-batches, which are item
  // number `item` of their packets. Undefined if all of them are undefined; otherwise an undefined
  // gradient counts as zero.
  at::Tensor join_gradients(const std::vector<Packet>& gradients, size_t item) const;

 private:
  int64_t rows_ = 0;
  std::vector<int64_t> sizes_;
  int64_t in_all_parts_ = 0;  // the number of micro-batches in all parts
};

// The sum, in ascending order, of the gradients of a tensor that all micro-batches had: item number
// `item` of their packets. Undefined if all of them are.
at::Tensor sum_gradients(const std::vector<Packet>& gradients, size_t item);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BATCH_MINI_BATCH_H_
