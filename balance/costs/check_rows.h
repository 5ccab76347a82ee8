// check_rows: finds layers whose result for a row depends on the other rows of the mini-batch.
//
// A pipeline gives each layer a micro-batch, not the mini-batch. Layers that mix rows, or that know
// how many there are, compute something else there, mostly without an error. Call it once before
// training, on a few rows.
#ifndef BALANCE_COSTS_CHECK_ROWS_H_
#define BALANCE_COSTS_CHECK_ROWS_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/loss_fn.h"

namespace gpipe::balance {

enum class RowProblemKind : uint8_t {
  kShape,   // dimension 0 of an output is not the rows: a transpose is missing, or rows are reduced
  kThrows,  // the layer takes all rows and throws for fewer: an {N, N} mask
  kValues,  // a row of an output has other values without the other rows: a softmax over dimension
            // 0
  // A batch norm in training mode, or without running statistics. It takes the micro-batch's
  // statistics on purpose, in any pipeline.
  kBatchNorm,
};

struct RowProblem {
  int64_t layer = 0;
  RowProblemKind kind = RowProblemKind::kShape;
  std::string text;  // one line: the layer, what differs, and what to do
};

// The layers with such a result, in the model's order; empty if none is found. Runs each layer on
// all rows and on two parts of them, each with what the layer before gave for all rows, so that
// only the layer that mixes rows is named. Nothing behind a kShape is looked at.
//
// Layers run in evaluation mode, so that dropout draws nothing: what a layer does in training alone
// is not seen, except for batch norms. Values of a layer that draws all the same are not compared,
// nor are those on the meta device. Floating-point values are compared up to the square root of
// their type's precision, as kernels round differently for other numbers of rows. Afterwards
// parameters, buffers, gradients, modes and LibTorch's generators are what they were.
//
// `inputs`: at least two rows; on one device, with the model. `shared_inputs`: as in
// GPipeOptions::shared_inputs; a mask belongs there. Layers may pass tensors or tuples of them, and
// use skips.
//
// Throws c10::ValueError for inputs of fewer than two rows or of different numbers of rows, and for
// a layer that throws with all rows; what GPipe's constructor throws for a model that cannot be in
// a pipeline.
//
// Example:
//   for (const auto& problem : gpipe::balance::check_rows(model, {input})) {
//     std::cerr << problem.text << "\n";
//   }
std::vector<RowProblem> check_rows(const torch::nn::Sequential& model, const Tensors& inputs,
                                   const std::vector<int64_t>& shared_inputs = {});

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_CHECK_ROWS_H_
