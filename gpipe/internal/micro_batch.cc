#include "gpipe/internal/micro_batch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/narrow.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "gpipe/internal/alias.h"

namespace gpipe::internal {

std::vector<int64_t> micro_batch_sizes(int64_t rows, int64_t chunks) {
  if (rows == 0) return {0};
  chunks = std::min(chunks, rows);  // also keeps the sum below from overflowing
  const int64_t size = (rows + chunks - 1) / chunks;
  std::vector<int64_t> sizes(rows / size, size);
  if (rows % size != 0) sizes.push_back(rows % size);
  return sizes;
}

int64_t batch_size(const std::vector<at::Tensor>& tensors, const char* what) {
  int64_t rows = -1;
  size_t first = 0;
  for (size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    if (!tensor.defined()) continue;
    TORCH_CHECK_VALUE(tensor.dim() > 0, what, " ", k,
                      " has no dimension to cut into micro-batches; give every tensor the batch as "
                      "its dimension 0, or make a constant part of the model");
    if (rows < 0) {
      rows = tensor.size(0);
      first = k;
    }
    TORCH_CHECK_VALUE(tensor.size(0) == rows, what, " ", k, " has ", tensor.size(0),
                      " rows in dimension 0, but ", what, " ", first, " has ", rows,
                      "; all must have the same batch size to be cut into micro-batches");
  }
  TORCH_CHECK_VALUE(rows >= 0, "there is no defined tensor among the ", tensors.size(),
                    " tensors of ", what, "; at least one is needed to tell the batch size");
  return rows;
}

at::Tensor rows_of(const at::Tensor& tensor, int64_t start, int64_t rows) {
  // All of them: of tensors that cannot be cut (sparse ones), too.
  if (!tensor.defined() || rows == tensor.size(0)) return detached_alias(tensor);
  c10::NoGradGuard no_grad;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  // narrow() costs as much as a small operator, and has to be asked for other kinds of tensors
  // only.
  if (typeid(impl) != typeid(c10::TensorImpl) || impl.has_symbolic_sizes_strides()) {
    return detached_alias(at::narrow(tensor, 0, start, rows));
  }
  at::Tensor result = detached_alias(tensor);
  c10::SmallVector<int64_t, 5> sizes(tensor.sizes().begin(), tensor.sizes().end());
  sizes[0] = rows;
  result.unsafeGetTensorImpl()->set_sizes_and_strides(
      sizes, tensor.strides(), tensor.storage_offset() + start * tensor.stride(0));
  return result;
}

std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors,
                                             const std::vector<int64_t>& sizes) {
  std::vector<std::vector<at::Tensor>> result(sizes.size());
  int64_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    result[i].reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      result[i].push_back(rows_of(tensor, start, sizes[i]));
    }
    start += sizes[i];
  }
  return result;
}

Packet micro_batch_of(const Packet& mini_batch, int64_t start, int64_t rows) {
  Packet packet;
  packet.kind = mini_batch.kind;
  for (const Item& item : mini_batch.items) {
    packet.items.push_back({rows_of(item.tensor, start, rows), item.needs_grad});
  }
  return packet;
}

void check_joinable(const at::Tensor& piece, size_t output, size_t micro_batches) {
  TORCH_CHECK_VALUE(
      piece.dim() > 0, "output ", output, " of the model is a scalar in each of ", micro_batches,
      " micro-batches, and scalars cannot be joined to a mini-batch; return a tensor with the "
      "batch as dimension 0 (unsqueeze(0) gives one row per micro-batch), or compute a loss with "
      "step()");
}

std::vector<at::Tensor> gather(const std::vector<Packet>& micro_batches) {
  c10::NoGradGuard no_grad;
  const Packet& first = micro_batches.front();
  std::vector<at::Tensor> result;
  result.reserve(first.items.size());
  for (size_t i = 1; i < micro_batches.size(); ++i) {
    TORCH_CHECK_VALUE(micro_batches[i].items.size() == first.items.size(), "the model returned ",
                      first.items.size(), " values for micro-batch 0, but ",
                      micro_batches[i].items.size(), " for micro-batch ", i,
                      "; it must return the same number for every micro-batch");
  }
  for (size_t k = 0; k < first.items.size(); ++k) {
    if (micro_batches.size() == 1) {
      result.push_back(first.items[k].tensor);
      continue;
    }
    std::vector<at::Tensor> pieces;
    pieces.reserve(micro_batches.size());
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      const at::Tensor& piece = micro_batches[i].items[k].tensor;
      TORCH_CHECK_VALUE(piece.defined() == first.items[k].tensor.defined(), "output ", k,
                        " of the model is defined for some micro-batches and undefined for others");
      if (!piece.defined()) continue;
      check_joinable(piece, k, micro_batches.size());
      pieces.push_back(piece);
    }
    result.push_back(pieces.empty() ? at::Tensor() : at::cat(pieces, 0));
  }
  return result;
}

}  // namespace gpipe::internal
