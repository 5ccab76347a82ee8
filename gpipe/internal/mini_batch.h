// MiniBatch: how the rows of what the caller gives are cut into micro-batches, and joined again.
#ifndef GPIPE_INTERNAL_MINI_BATCH_H_
#define GPIPE_INTERNAL_MINI_BATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/packet.h"

namespace gpipe::internal {

// The common size of dimension 0 of the defined tensors. Throws c10::ValueError if there is none,
// if one has no dimension, or if the sizes differ. `what` names the argument in the message.
int64_t batch_size(const std::vector<at::Tensor>& tensors, const char* what);

// A value: it knows numbers of rows and no tensors.
class MiniBatch {
 public:
  MiniBatch() = default;
  // ceil(rows / chunks) rows in each micro-batch, in the last one what is left, like Tensor::chunk,
  // so that there may be fewer micro-batches than chunks. No rows: one empty micro-batch.
  MiniBatch(int64_t rows, int64_t chunks);

  int64_t rows() const { return rows_; }
  int64_t micro_batches() const { return static_cast<int64_t>(sizes_.size()); }
  const std::vector<int64_t>& sizes() const { return sizes_; }  // [micro-batch] its rows

  // The rows of micro-batch i of a tensor with as many rows as the mini-batch: over its storage,
  // detached, no view in autograd's eyes. An undefined tensor stays undefined. Throws
  // c10::ValueError for a part of a tensor that is not strided (a sparse one, say).
  at::Tensor cut(const at::Tensor& whole, int64_t i) const;
  std::vector<at::Tensor> cut(const std::vector<at::Tensor>& whole, int64_t i) const;
  // Gradients need no alias: where there is one micro-batch they are taken as they are.
  Packet cut_gradients(const std::vector<at::Tensor>& whole, int64_t i) const;

  // Throws c10::ValueError if `piece`, output number `output` of micro-batch i, cannot be joined
  // with those of the others: a scalar, or not as many rows as the micro-batch has. Anything goes
  // where there is one micro-batch.
  void check_joinable(const at::Tensor& piece, size_t output, int64_t i) const;
  // The same for an output that need not be joined, so that scalars are fine.
  void check_rows(const at::Tensor& piece, size_t output, int64_t i) const;

  // Concatenates the micro-batches' outputs along dimension 0 (a single one is returned as it is).
  // Outputs that are one tensor stay one; otherwise they share no memory. Throws c10::ValueError
  // for what check_joinable() refuses, and for values that differ in number or in definedness.
  std::vector<at::Tensor> join(const std::vector<Packet>& outputs) const;
  // The gradient of a tensor that was cut, from those of its pieces, which are item number `item`
  // of the micro-batches' packets: undefined if all of them are, zero where some are.
  at::Tensor join_gradients(const std::vector<Packet>& gradients, size_t item) const;

 private:
  int64_t rows_ = 0;
  std::vector<int64_t> sizes_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MINI_BATCH_H_
