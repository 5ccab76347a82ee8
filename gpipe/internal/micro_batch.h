// Cutting a mini-batch into micro-batches, and joining them again.
#ifndef GPIPE_INTERNAL_MICRO_BATCH_H_
#define GPIPE_INTERNAL_MICRO_BATCH_H_

#include <cstdint>
#include <vector>

#include "gpipe/internal/packet.h"
#include "gpipe/internal/value.h"

namespace gpipe::internal {

// The rows of each micro-batch: ceil(rows / chunks) each, the last one what is left, like
// Tensor::chunk, so that there may be fewer micro-batches than chunks. No rows: one empty one.
std::vector<int64_t> micro_batch_sizes(int64_t rows, int64_t chunks);

// The common size of dimension 0 of the defined tensors. Throws c10::ValueError if there is none,
// if one has no dimension, or if the sizes differ. `what` names the argument in the message.
int64_t batch_size(const std::vector<at::Tensor>& tensors, const char* what);

// The rows [start, start + rows) of a tensor with at least one dimension: over its storage,
// detached, no view in autograd's eyes. An undefined tensor stays undefined. Throws c10::ValueError
// for a part of a tensor that is not strided (a sparse one, say).
at::Tensor rows_of(const at::Tensor& tensor, int64_t start, int64_t rows);

// Element i holds the tensors of micro-batch i: see rows_of().
std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors,
                                             const std::vector<int64_t>& sizes);

// Throws c10::ValueError if `piece`, output number `output` of a micro-batch, cannot be joined with
// those of the others: a scalar, or not as many rows as the micro-batch has. Anything goes where
// there is one micro-batch.
void check_joinable(const at::Tensor& piece, size_t output, const std::vector<int64_t>& sizes,
                    size_t micro_batch);
// The same for an output that need not be joined, so that scalars are fine.
void check_rows(const at::Tensor& piece, size_t output, const std::vector<int64_t>& sizes,
                size_t micro_batch);

// Concatenates the micro-batches' outputs along dimension 0 (a single one is returned as it is).
// Outputs that are one tensor stay one; otherwise they share no memory. Throws c10::ValueError for
// what check_joinable() refuses, and for values that differ in number or in definedness.
std::vector<at::Tensor> gather(const std::vector<Packet>& micro_batches,
                               const std::vector<int64_t>& sizes);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MICRO_BATCH_H_
