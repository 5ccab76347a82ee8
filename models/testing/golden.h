// Golden: reference numbers of the models in //models, and how they were obtained. For tests only.
//
// The numbers were obtained once from torchgpipe's own Python models, on the CPU in float64. The
// procedures here lead to them: how parameters and inputs are filled without a file of weights, the
// losses, and what of a result is compared.
//
// Example:
//   unet->to(torch::kFloat64);
//   fill("hash", *unet);
//   unet->eval();
//   auto output = unet->forward(golden_input(golden_case.input_shape));
//   EXPECT_EQ(difference(record(output), golden_case.fills.at("hash").eval, 1e-9), "");
#ifndef MODELS_TESTING_GOLDEN_H_
#define MODELS_TESTING_GOLDEN_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::models::testing {

// Overwrites all parameters and buffers with values that depend only on their position in
// named_parameters() and named_buffers(). "hash" is sensitive to every detail of a network; "sin"
// is meaningful only for networks without batch norm.
void fill(const std::string& kind, torch::nn::Module& module);
void fill_hash(torch::nn::Module& module);
void fill_sin(torch::nn::Module& module);

// Sets the probability of every Dropout2d to 0.
void turn_dropout_off(torch::nn::Module& module);

// A float64 tensor of this shape with element i = sin(0.01 i).
at::Tensor golden_input(at::IntArrayRef shape);
// `loss` is "ce" (output [batch, classes]) or "bce" (any output). The target is for the whole
// batch.
at::Tensor golden_target(const std::string& loss, at::IntArrayRef output_shape);
at::Tensor golden_loss(const std::string& loss, const at::Tensor& output, const at::Tensor& target);
at::Tensor golden_loss(const std::string& loss, const at::Tensor& output);

// The numbers of an output that are compared.
struct Record {
  std::vector<int64_t> shape;  // empty in a golden record: not recorded
  double sum = 0, abs_sum = 0, weighted_sum = 0;
  double max_abs = 0;  // 0 in a golden record
  std::vector<double> first, last;
};
Record record(const at::Tensor& output);

// The numbers of all parameters' gradients that are compared.
struct GradientRecord {
  double total_sum = 0, total_abs_sum = 0;
  std::vector<double> first_parameter, last_parameter;  // their first elements
  double first_max_abs = 0, last_max_abs = 0;           // 0 in a golden record
  // The sum of each parameter's |gradient|; empty: not recorded. A golden sum of 0 is zero by
  // mathematics (the bias of a batch norm that only another batch norm reads), so the computed sum
  // is rounding noise.
  std::vector<double> abs_sums;
};
GradientRecord record_gradients(const torch::nn::Module& module);

// The numbers of all batch norms' buffers that are compared.
struct BufferRecord {
  double mean_sum = 0, mean_abs_sum = 0, var_sum = 0;
  int64_t batches = 0;
  std::vector<double> first_mean, first_var;  // first elements of the first batch norm
};
// nullopt if there is no batch norm.
std::optional<BufferRecord> record_buffers(const torch::nn::Module& module);

// The output of one top-level layer: the sum of |x| of each of its tensors.
struct TraceEntry {
  std::string layer;
  std::vector<double> abs_sums;
};
std::vector<TraceEntry> trace(torch::nn::Sequential model, const at::Tensor& input);

// The loss before each of `steps` steps of plain SGD at learning rate 0.01.
std::vector<double> sgd_losses(torch::nn::Sequential model, const at::Tensor& input,
                               const std::string& loss, int64_t steps);

// Returns "" if `actual` agrees with `golden` to `tolerance`, else the differences and their sizes.
// Elements are compared relative to the largest one, sums relative to the sum of absolute values,
// other numbers relative to the golden one.
std::string difference(const Record& actual, const Record& golden, double tolerance);
std::string difference(const GradientRecord& actual, const GradientRecord& golden,
                       double tolerance);
std::string difference(const BufferRecord& actual, const BufferRecord& golden, double tolerance);
std::string difference(const std::vector<TraceEntry>& actual, const std::vector<TraceEntry>& golden,
                       double tolerance);
std::string difference(const std::vector<double>& actual, const std::vector<double>& golden,
                       double tolerance);
std::string difference(double actual, double golden, double tolerance);

struct Tolerance {
  double eval, train, gradients;
};

// Results of the plain model with one fill. Training is without dropout unless the name says so.
struct Results {
  Record eval;
  double eval_loss = 0;
  std::vector<TraceEntry> eval_trace;  // empty: not recorded
  Record train;
  double train_loss = 0;
  std::optional<Record> train_dropout_seed_123;  // manual_seed(123) right before the forward
  GradientRecord gradients;
  std::optional<BufferRecord> buffers;  // after one forward in train mode
  std::vector<double> sgd_losses;       // empty: not recorded
};

struct Case {
  std::string label;  // "resnet_1111_nc10_64x64"
  std::vector<int64_t> input_shape;
  std::string loss;
  Tolerance tolerance;
  int64_t parameters, layers, state_entries;
  std::vector<std::string> parameter_names;
  std::map<std::string, Results> fills;  // "hash", for U-Net "sin" too
};

// One forward and backward in train mode without dropout through the original pipeline, then a
// forward in eval mode. Where `checkpoint` is not "never" and batch norm is not deferred, the
// original updates running statistics again in each recompute, which ours does not. In that case
// take `buffers` and `eval_after` from the run with "never".
struct PipelineRun {
  std::string label;
  std::vector<int64_t> input_shape;
  std::string loss;
  Tolerance tolerance;
  std::vector<int64_t> balance;
  int64_t chunks;
  std::string checkpoint;  // "always", "except_last", "never"
  bool deferred_batch_norm;
  std::string fill;
  std::vector<int64_t> micro_batch_sizes;
  Record train;
  double train_loss;
  GradientRecord gradients;
  std::optional<BufferRecord> buffers;
  Record eval_after;
};

const std::vector<Case>& golden_cases();
const std::vector<PipelineRun>& golden_pipeline_runs();
// Throws std::out_of_range for an unknown label.
const Case& golden_case(const std::string& label);

// The size of a model, as numbers of elements and not of bytes.
struct Counts {
  int64_t parameters, parameter_tensors, buffer_tensors, buffer_elements, layers, skippables;
};
bool operator==(const Counts& a, const Counts& b);
std::ostream& operator<<(std::ostream& stream, const Counts& counts);
Counts count(const torch::nn::Sequential& model);

}  // namespace gpipe::models::testing

#endif  // MODELS_TESTING_GOLDEN_H_
