#include <algorithm>

#include "meta/kernel.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kNumber = 4;  // the bytes of a float32
constexpr int64_t kPage = 4096;

int64_t rounded_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}
int64_t pages(int64_t numbers) { return rounded_up(numbers * kNumber, kPage); }

// The length of a row in oneDNN's memory. It is a multiple of `step`, chosen so that the rows are
// not all in one set of a cache.
int64_t row(int64_t size, int64_t step = 16) {
  const int64_t length = rounded_up(size, step);
  return length % 256 == 0 ? length + 16 : length;
}

// A layer of an LSTM in one direction. How much memory oneDNN keeps and takes was found by trying
// many sizes. How it is divided into parts is a guess that fits these sizes (docs/design/meta.md).
struct Lstm {
  int64_t steps, batch, inputs, hidden;

  explicit Lstm(const at::Tensor& input, int64_t hidden)
      : steps(input.size(0)), batch(input.size(1)), inputs(input.size(2)), hidden(hidden) {}

  // The memory kept for the backward, in bytes: gates, outputs and states of all steps.
  int64_t workspace() const {
    const int64_t states = 2 * (steps + 1) * batch;
    return pages(steps * batch * row(4 * hidden)) + pages(steps * batch * row(hidden)) +
           3 * pages(states * row(std::max(inputs, hidden))) + 2 * pages(states * hidden);
  }
  // The memory taken while the layer runs, in bytes.
  int64_t scratch() const {
    return pages(steps * batch * row(4 * hidden)) + 2 * pages(batch * hidden) + kPage;
  }
};

Tensors rnn_layer(const Arguments& in) {
  const at::Tensor input = in.tensor("input"), hx = in.tensor("hx_"), cx = in.tensor("cx_");
  const Lstm lstm(input, in.integer("hidden_size"));
  Tensors results = {made_like(input, {lstm.steps, lstm.batch, lstm.hidden}), same_as(hx),
                     same_as(cx), made_like(input, {lstm.workspace()}, at::kByte)};
  // oneDNN's kernel takes memory while it runs: the weights in its own layout, and scratch memory.
  // These tensors stand for it.
  const Tensors own = {same_as(in.tensor("weight0")), same_as(in.tensor("weight1")),
                       same_as(in.tensor("weight3")),
                       made_like(input, {lstm.scratch()}, at::kByte)};
  return results;
}

Tensors rnn_layer_backward(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  const at::Tensor weight_ih = in.tensor("weight1"), weight_hh = in.tensor("weight2");
  const at::Tensor bias = same_as(in.tensor("weight3"));
  const Lstm lstm(input, weight_hh.size(1));
  Tensors results = {same_as(input), same_as(weight_ih),        same_as(weight_hh),          bias,
                     bias,           same_as(in.tensor("hx_")), same_as(in.tensor("cx_tmp"))};
  // oneDNN's kernel takes memory while it runs: the weights and their gradients in its own layout,
  // and scratch memory. These tensors stand for it.
  const int64_t gates = row(4 * lstm.hidden, 64);
  const Tensors own = {
      same_as(weight_ih), same_as(weight_hh), made_like(input, {lstm.inputs, gates}),
      made_like(input, {lstm.hidden, gates}), made_like(input, {lstm.scratch()}, at::kByte)};
  return results;
}

}  // namespace

std::vector<MetaKernel> recurrent_kernels() {
  return {{"mkldnn_rnn_layer", rnn_layer}, {"mkldnn_rnn_layer_backward", rnn_layer_backward}};
}

}  // namespace gpipe::internal
