// AdaptableLinear: a linear layer that takes low-rank adapters (models/lora.h).
#ifndef MODELS_ADAPTABLE_LINEAR_H_
#define MODELS_ADAPTABLE_LINEAR_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::models {

namespace internal {

// The name, place and options of an adapter. A value type.
struct AdapterShape {
  std::string name;            // the adapted layer's, as in files and patterns
  int64_t begin = 0, end = 0;  // the rows of the weight
  int64_t rank = 1;
  double scaling = 1;  // the factor of the product
  double dropout = 0;
  bool dora = false;
  // Whether files have the weight as (in, out). Sums over its rows are then in another order.
  bool transposed = false;
};

// B * A * scaling, added to rows of a weight W, and with DoRA the length m of each row of the sum
// (Hu et al., "LoRA", 2021; Liu et al., "DoRA", 2024). Computes what Python's `peft` computes, in
// its order.
class LowRankAdapterImpl : public torch::nn::Cloneable<LowRankAdapterImpl> {
 public:
  // `weight`: the weight that is adapted, (out, in). If its type has less than 32 bits, the adapter
  // is of float32.
  LowRankAdapterImpl(AdapterShape shape, const at::Tensor& weight);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // Initializes the adapter: A is drawn and B is 0, so it changes nothing at first.
  void draw(const at::Tensor& weight);

  // Returns the tensor that replaces `result`, the adapted rows of the layer's output. `weight` and
  // `bias` are those of the whole layer; `bias` is undefined if there is none.
  at::Tensor adapted(const at::Tensor& input, const at::Tensor& result, const at::Tensor& weight,
                     const at::Tensor& bias);
  // Writes the merged rows into `weight`.
  void merge_into(at::Tensor& weight) const;

  const AdapterShape& shape() const { return shape_; }

  at::Tensor A, B, magnitude;  // (rank, in), (rows, rank), and with DoRA (rows)

 private:
  at::Tensor rows_of(const at::Tensor& tensor) const {
    return tensor.slice(0, shape_.begin, shape_.end);
  }
  // The lengths of the rows of weight + product: (rows).
  at::Tensor lengths(const at::Tensor& weight, const at::Tensor& product) const;
  at::Tensor change() const;  // (rows, in)

  AdapterShape shape_;
  int64_t in_features_;
  at::TensorOptions tensor_options_;
};
TORCH_MODULE(LowRankAdapter);

}  // namespace internal

// torch::nn::Linear, with the same parameters, first values and results, that add_lora
// (models/lora.h) can adapt: a torch::nn::Linear that is a member of a layer cannot be replaced
// from outside. The adapters' parameters are "lora.A", "lora.B" and "lora.magnitude", or those of
// "lora0", "lora1" and so on where several adapt one layer.
//
// Example:
//   struct BlockImpl : torch::nn::Module {
//     gpipe::models::AdaptableLinear in{register_module("in", gpipe::models::AdaptableLinear(8,
//     32))};
class AdaptableLinearImpl : public torch::nn::Cloneable<AdaptableLinearImpl> {
 public:
  AdaptableLinearImpl(int64_t in_features, int64_t out_features)
      : AdaptableLinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  explicit AdaptableLinearImpl(const torch::nn::LinearOptions& linear_options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  // Adds adapters for ranges of rows that do not overlap. Throws c10::ValueError if there are
  // adapters already.
  void add_adapters(std::vector<internal::AdapterShape> shapes);
  void remove_adapters();
  void merge_and_remove_adapters();
  const std::vector<internal::LowRankAdapter>& adapters() const { return adapters_; }

  // Keeps a copy of the weight with the adapters in it, with which forward() computes until
  // unmerge(). `weight` stays as it is, so whatever saves, loads or hashes the parameters has the
  // same ones. Does nothing if they are merged already.
  void merge();
  void unmerge() { merged_ = at::Tensor(); }
  bool is_merged() const { return merged_.defined(); }
  // Throws c10::ValueError while the adapters are merged.
  void load(torch::serialize::InputArchive& archive) override;

  torch::nn::LinearOptions options;
  at::Tensor weight, bias;  // (out, in), (out)

 private:
  void register_adapters(const std::vector<internal::AdapterShape>& shapes);

  std::vector<internal::LowRankAdapter> adapters_;
  // Throws c10::ValueError if the merged layer would compute, or train, another model than the
  // layer with adapters.
  void check_merged(const at::Tensor& input) const;
  // A number that changes whenever the weight or an adapter is written to.
  int64_t version() const;

  at::Tensor merged_;           // the weight with the adapters; undefined unless they are merged
  int64_t merged_version_ = 0;  // version() when merged_ was made
};
TORCH_MODULE(AdaptableLinear);

}  // namespace gpipe::models

#endif  // MODELS_ADAPTABLE_LINEAR_H_
