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
// detached, no view in autograd's eyes. An undefined tensor stays undefined.
at::Tensor rows_of(const at::Tensor& tensor, int64_t start, int64_t rows);

// Element i holds the tensors of micro-batch i: see rows_of().
std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors,
                                             const std::vector<int64_t>& sizes);

// The rows [start, start + rows) of every tensor: see rows_of().
Packet micro_batch_of(const Packet& mini_batch, int64_t start, int64_t rows);

// Throws c10::ValueError if `piece`, output number `output` of one of several micro-batches, is a
// scalar: those cannot be joined.
void check_joinable(const at::Tensor& piece, size_t output, size_t micro_batches);

// Concatenates the micro-batches' outputs along dimension 0 (a single one is returned as it is).
// Throws c10::ValueError for scalars, for values that differ in number or in definedness.
std::vector<at::Tensor> gather(const std::vector<Packet>& micro_batches);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MICRO_BATCH_H_
