#include "gpipe/internal/batch/mini_batch.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <numeric>
#include <typeinfo>
#include <utility>

#include "gpipe/chunk_sizes.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/twins.h"

namespace gpipe::internal {
namespace {

// Whether outputs `a` and `b` are the same tensor in every micro-batch.
bool same_everywhere(const std::vector<Packet>& micro_batches, size_t a, size_t b) {
  return std::all_of(micro_batches.begin(), micro_batches.end(), [&](const Packet& packet) {
    return are_twins(packet.items[a].tensor, packet.items[b].tensor);
  });
}

// The rows [start, start + rows): see MiniBatch::slice().
at::Tensor rows_of(const at::Tensor& tensor, int64_t start, int64_t rows) {
  // If all rows are asked for, nothing is cut, so tensors that cannot be cut (e.g. sparse ones) are
  // accepted.
  if (!tensor.defined() || rows == tensor.size(0)) return detached_alias(tensor);
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided, "a tensor of layout ", tensor.layout(),
                    " and shape ", tensor.sizes(),
                    " cannot be cut into micro-batches; give a dense one (to_dense()), or use "
                    "chunks(1)");
  c10::NoGradGuard no_grad;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  // narrow() costs as much as a small operator, so it is called only for tensors that are not
  // plain.
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

}  // namespace

MiniBatch::MiniBatch(int64_t rows, int64_t chunks)
    : rows_(rows), sizes_(micro_batch_sizes(rows, chunks)), in_all_parts_(micro_batches()) {}

MiniBatch::MiniBatch(int64_t rows, int64_t chunks, int64_t part, int64_t parts)
    : MiniBatch(rows, chunks) {
  if (parts == 1) return;
  const int64_t begin = std::min(micro_batches(), chunks / parts * part);
  const int64_t end = std::min(micro_batches(), chunks / parts * (part + 1));
  sizes_ = std::vector<int64_t>(sizes_.begin() + begin, sizes_.begin() + end);
  rows_ = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
}

at::Tensor MiniBatch::slice(const at::Tensor& whole, int64_t i) const {
  return rows_of(whole, i * sizes_[0], sizes_[i]);
}

std::vector<at::Tensor> MiniBatch::slice(const std::vector<at::Tensor>& whole, int64_t i) const {
  std::vector<at::Tensor> result;
  result.reserve(whole.size());
  for (const at::Tensor& tensor : whole) result.push_back(slice(tensor, i));
  return result;
}

Packet MiniBatch::slice_gradients(const std::vector<at::Tensor>& whole, int64_t i) const {
  Packet packet;
  for (const at::Tensor& gradient : whole) {
    Item item;
    if (gradient.defined()) item.tensor = sizes_.size() == 1 ? gradient : slice(gradient, i);
    // Rows may share memory, e.g. in the gradient of a sum over them. Then a micro-batch of one row
    // gets a copy, because users' code that it runs could write there while other micro-batches use
    // the memory. (LibTorch refuses that itself if a micro-batch has several such rows.)
    if (sizes_.size() > 1 && sizes_[i] == 1 && gradient.defined() &&
        gradient.layout() == c10::kStrided && gradient.dim() > 0 && gradient.stride(0) == 0) {
      item.tensor = copy_in_layout(item.tensor);
    }
    packet.items.push_back(std::move(item));
  }
  return packet;
}

void MiniBatch::check_rows(const at::Tensor& piece, size_t output, int64_t i) const {
  if (in_all_parts_ == 1 || !piece.defined()) return;
  TORCH_CHECK_VALUE(
      piece.dim() > 0, "output ", output, " of the model is a scalar in each of ", in_all_parts_,
      " micro-batches, from which nobody can tell what it would be for the whole mini-batch; "
      "return one value for each row (flatten(1).mean(1) instead of mean(), expand({rows}) of a "
      "constant) and reduce them in the loss function of step() or behind forward(), or use "
      "chunks(1)");
  TORCH_CHECK_VALUE(
      piece.size(0) == sizes_[i], "output ", output, " of the model has the shape ", piece.sizes(),
      " for micro-batch ", i, ", which has ", sizes_[i],
      " rows: dimension 0 of an output must be the batch, row i for row i of the input. A layer "
      "that drops, adds or merges rows, or whose batch is another dimension, cannot be cut into "
      "micro-batches; transpose or reshape back at the end of the model, or use chunks(1)");
}

std::vector<at::Tensor> MiniBatch::join(const std::vector<Packet>& outputs) const {
  if (outputs.empty()) return {};
  c10::NoGradGuard no_grad;
  const Packet& first = outputs.front();
  std::vector<at::Tensor> result;
  result.reserve(first.items.size());
  for (size_t i = 1; i < outputs.size(); ++i) {
    TORCH_CHECK_VALUE(outputs[i].items.size() == first.items.size(), "the model returned ",
                      first.items.size(), " values for micro-batch 0, but ",
                      outputs[i].items.size(), " for micro-batch ", i,
                      "; it must return the same number for every micro-batch");
  }
  for (size_t k = 0; k < first.items.size(); ++k) {
    // A tensor that is returned twice stays a single tensor.
    size_t same = 0;
    while (same < k && !same_everywhere(outputs, same, k)) ++same;
    if (same < k) {
      result.push_back(result[same]);
      continue;
    }
    if (outputs.size() == 1) {
      const at::Tensor& whole = first.items[k].tensor;
      const bool alone = std::none_of(result.begin(), result.end(), [&](const at::Tensor& other) {
        return may_overlap(other, whole);
      });
      result.push_back(alone ? whole : copy_in_layout(whole));
      continue;
    }
    std::vector<at::Tensor> pieces;
    pieces.reserve(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor& piece = outputs[i].items[k].tensor;
      TORCH_CHECK_VALUE(piece.defined() == first.items[k].tensor.defined(), "output ", k,
                        " of the model is defined for some micro-batches and undefined for others");
      if (!piece.defined()) continue;
      check_rows(piece, k, static_cast<int64_t>(i));
      pieces.push_back(piece);
    }
    result.push_back(pieces.empty() ? at::Tensor() : at::cat(pieces, 0));
  }
  return result;
}

at::Tensor MiniBatch::join_gradients(const std::vector<Packet>& gradients, size_t item) const {
  std::vector<at::Tensor> pieces;
  at::Tensor defined;
  for (const Packet& packet : gradients) {
    pieces.push_back(item < packet.items.size() ? packet.items[item].tensor : at::Tensor());
    if (!defined.defined()) defined = pieces.back();
  }
  if (!defined.defined() || pieces.size() == 1) return defined;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].defined()) continue;
    std::vector<int64_t> shape = defined.sizes().vec();
    shape[0] = sizes_[i];
    pieces[i] = at::zeros(shape, defined.options());
  }
  return at::cat(pieces, 0);
}

at::Tensor sum_gradients(const std::vector<Packet>& gradients, size_t item) {
  at::Tensor sum;
  for (const Packet& packet : gradients) {
    if (item >= packet.items.size() || !packet.items[item].tensor.defined()) continue;
    const at::Tensor& gradient = packet.items[item].tensor;
    sum = sum.defined() ? at::add(sum, gradient) : gradient;
  }
  return sum;
}

}  // namespace gpipe::internal
