#include "models/testing/golden.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/dropout.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <stdexcept>

#include "models/hash_fill.h"
#include "skip/skippable.h"

namespace gpipe::models::testing {
namespace {

using Json = nlohmann::json;

// The file with the reference numbers is compiled in, so that tests of other packages need not find
// it.
const char* const kGolden =
#include "models/testing/golden.inc"
    ;

// A gradient that is zero by mathematics is rounding noise, up to this sum of absolute values.
constexpr double kZeroGradient = 1e-9;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::vector<double> elements(const at::Tensor& tensor, int64_t from, int64_t count) {
  const at::Tensor flat = tensor.detach().flatten().to(at::kDouble);
  std::vector<double> values;
  for (int64_t i = std::max<int64_t>(from, 0); i < std::min(from + count, flat.size(0)); ++i) {
    values.push_back(flat[i].item<double>());
  }
  return values;
}

double abs_sum(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble).abs().sum().item<double>();
}

double max_abs(const at::Tensor& tensor) { return tensor.detach().abs().max().item<double>(); }

// Collects the differences between actual and golden numbers, as text.
class Differences {
 public:
  explicit Differences(double tolerance) : tolerance_(tolerance) {}

  void compare(const std::string& what, double actual, double golden, double scale) {
    // Written with a negation, so that NaN counts as a difference, too.
    if (!(std::abs(actual - golden) <= tolerance_ * scale)) {
      text_ << what << " is " << actual << ", golden " << golden << ", apart by "
            << std::abs(actual - golden) / scale << " of " << scale << "\n";
    }
  }
  void compare(const std::string& what, const std::vector<double>& actual,
               const std::vector<double>& golden, double scale) {
    if (actual.size() != golden.size()) {
      text_ << what << " has " << actual.size() << " elements, golden " << golden.size() << "\n";
      return;
    }
    for (size_t i = 0; i < golden.size(); ++i) {
      compare(what + "[" + std::to_string(i) + "]", actual[i], golden[i],
              scale > 0 ? scale : std::abs(golden[i]));
    }
  }
  template <typename T>
  void expect_equal(const std::string& what, const T& actual, const T& golden) {
    if (!(actual == golden))
      text_ << what << " differs: " << actual << ", golden " << golden << "\n";
  }
  std::string text() const { return text_.str(); }

 private:
  double tolerance_;
  std::ostringstream text_;
};

Record to_record(const Json& json) {
  Record record;
  if (json.contains("shape")) record.shape = json["shape"].get<std::vector<int64_t>>();
  record.sum = json.at("sum");
  record.abs_sum = json.at("abs_sum");
  record.weighted_sum = json.at("weighted_sum");
  record.first = json.at("first").get<std::vector<double>>();
  record.last = json.at("last").get<std::vector<double>>();
  return record;
}

GradientRecord to_gradients(const Json& json) {
  GradientRecord record;
  record.total_sum = json.at("total_sum");
  record.total_abs_sum = json.at("total_abs_sum");
  record.first_parameter = json.at("first_parameter").get<std::vector<double>>();
  record.last_parameter = json.at("last_parameter").get<std::vector<double>>();
  if (json.contains("abs_sums")) record.abs_sums = json["abs_sums"].get<std::vector<double>>();
  return record;
}

std::optional<BufferRecord> to_buffers(const Json& json) {
  if (!json.contains("buffers")) return std::nullopt;
  const Json& buffers = json["buffers"];
  BufferRecord record;
  record.mean_sum = buffers.at("mean_sum");
  record.mean_abs_sum = buffers.at("mean_abs_sum");
  record.var_sum = buffers.at("var_sum");
  record.batches = buffers.at("batches");
  record.first_mean = buffers.at("first_mean").get<std::vector<double>>();
  record.first_var = buffers.at("first_var").get<std::vector<double>>();
  return record;
}

Tolerance to_tolerance(const Json& json) {
  return {json.at("eval"), json.at("train"), json.at("gradients")};
}

Results to_results(const Json& json) {
  Results results;
  results.eval = to_record(json.at("eval"));
  results.eval_loss = json.at("eval_loss");
  if (json.contains("eval_trace")) {
    for (const auto& entry : json["eval_trace"]) {
      results.eval_trace.push_back({entry.at(0), entry.at(1).get<std::vector<double>>()});
    }
  }
  results.train = to_record(json.at("train"));
  results.train_loss = json.at("train_loss");
  if (json.contains("train_dropout_seed_123")) {
    results.train_dropout_seed_123 = to_record(json["train_dropout_seed_123"]);
  }
  results.gradients = to_gradients(json.at("gradients"));
  results.buffers = to_buffers(json);
  if (json.contains("sgd_losses")) {
    results.sgd_losses = json["sgd_losses"].get<std::vector<double>>();
  }
  return results;
}

const Json& golden() {
  static const Json json = Json::parse(kGolden);
  return json;
}

}  // namespace

void fill(const std::string& kind, torch::nn::Module& module) {
  TORCH_CHECK_VALUE(kind == "hash" || kind == "sin", "fills are 'hash' and 'sin', got '", kind,
                    "'");
  kind == "hash" ? fill_hash(module) : fill_sin(module);
}

void fill_hash(torch::nn::Module& module) {
  hash_fill_parameters(module);
  uint32_t k = 1000000;
  for (const auto& buffer : module.named_buffers()) {
    const at::Tensor& tensor = buffer.value();
    if (ends_with(buffer.key(), "running_mean")) {
      overwrite(tensor, [&](int64_t i) { return 0.1 * hash_value(k, i); });
    } else if (ends_with(buffer.key(), "running_var")) {
      overwrite(tensor, [&](int64_t i) { return 1 + 0.5 * hash_value(k, i); });
    } else {
      overwrite(tensor, [](int64_t) { return 0; });
    }
    ++k;
  }
}

void fill_sin(torch::nn::Module& module) {
  int64_t k = 0;
  for (const auto& parameter : module.named_parameters()) {
    overwrite(parameter.value(), [k](int64_t i) { return 0.05 * std::sin(0.37 * i + k); });
    ++k;
  }
  for (const auto& buffer : module.named_buffers()) {
    const double value = ends_with(buffer.key(), "running_var") ? 1 : 0;
    overwrite(buffer.value(), [value](int64_t) { return value; });
  }
}

void turn_dropout_off(torch::nn::Module& module) {
  for (const auto& submodule : module.modules()) {
    if (auto* dropout = submodule->as<torch::nn::Dropout2d>()) dropout->options.p(0);
  }
}

at::Tensor golden_input(at::IntArrayRef shape) {
  at::Tensor input = at::empty(shape, at::kDouble);
  overwrite(input, [](int64_t i) { return std::sin(0.01 * i); });
  return input;
}

at::Tensor golden_target(const std::string& loss, at::IntArrayRef output_shape) {
  TORCH_CHECK_VALUE(loss == "ce" || loss == "bce", "losses are 'ce' and 'bce', got '", loss, "'");
  if (loss == "ce") {
    return (at::arange(output_shape[0], at::kLong) * 3 + 1).remainder(output_shape[1]);
  }
  at::Tensor target = at::empty(output_shape, at::kDouble);
  overwrite(target, [](int64_t j) { return 0.5 + 0.5 * std::sin(0.02 * j); });
  return target;
}

at::Tensor golden_loss(const std::string& loss, const at::Tensor& output,
                       const at::Tensor& target) {
  return loss == "ce" ? at::cross_entropy_loss(output, target)
                      : at::binary_cross_entropy_with_logits(output, target);
}

at::Tensor golden_loss(const std::string& loss, const at::Tensor& output) {
  return golden_loss(loss, output, golden_target(loss, output.sizes()));
}

Record record(const at::Tensor& output) {
  const at::Tensor flat = output.detach().flatten().to(at::kDouble);
  const int64_t count = flat.size(0);
  Record record;
  record.shape = output.sizes().vec();
  record.sum = flat.sum().item<double>();
  record.abs_sum = abs_sum(flat);
  const at::Tensor weights = (at::arange(count, at::kLong).remainder(97) + 1).to(at::kDouble) / 97;
  record.weighted_sum = flat.mul(weights).sum().item<double>();
  record.max_abs = max_abs(flat);
  record.first = elements(flat, 0, 8);
  record.last = elements(flat, count - 4, 4);
  return record;
}

GradientRecord record_gradients(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  GradientRecord record;
  for (const auto& parameter : parameters) {
    const at::Tensor& grad = parameter.grad();
    TORCH_CHECK(grad.defined(), "a parameter of shape ", parameter.sizes(), " has no gradient");
    record.abs_sums.push_back(abs_sum(grad));
    record.total_abs_sum += record.abs_sums.back();
    record.total_sum += grad.sum().item<double>();
  }
  record.first_parameter = elements(parameters.front().grad(), 0, 8);
  record.last_parameter = elements(parameters.back().grad(), 0, 8);
  record.first_max_abs = max_abs(parameters.front().grad());
  record.last_max_abs = max_abs(parameters.back().grad());
  return record;
}

std::optional<BufferRecord> record_buffers(const torch::nn::Module& module) {
  BufferRecord record;
  const auto buffers = module.named_buffers();
  for (const auto& buffer : buffers) {
    const at::Tensor& tensor = buffer.value();
    const double sum = tensor.sum().item<double>();
    if (ends_with(buffer.key(), "running_mean")) {
      if (record.first_mean.empty()) record.first_mean = elements(tensor, 0, 4);
      record.mean_sum += sum;
      record.mean_abs_sum += abs_sum(tensor);
    } else if (ends_with(buffer.key(), "running_var")) {
      if (record.first_var.empty()) record.first_var = elements(tensor, 0, 4);
      record.var_sum += sum;
    } else {
      record.batches += static_cast<int64_t>(sum);
    }
  }
  if (buffers.is_empty()) return std::nullopt;
  return record;
}

std::vector<TraceEntry> trace(torch::nn::Sequential model, const at::Tensor& input) {
  const auto names = model->named_children().keys();
  std::vector<TraceEntry> entries;
  torch::nn::AnyValue value{at::Tensor(input)};
  for (auto& layer : *model) {
    value = layer.any_forward(std::move(value));
    TraceEntry entry{names[entries.size()], {}};
    if (const auto* tensor = value.try_get<at::Tensor>()) {
      entry.abs_sums.push_back(abs_sum(*tensor));
    } else {
      for (const auto& part : value.get<std::vector<at::Tensor>>()) {
        entry.abs_sums.push_back(abs_sum(part));
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<double> sgd_losses(torch::nn::Sequential model, const at::Tensor& input,
                               const std::string& loss, int64_t steps) {
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    model->zero_grad();
    const at::Tensor value = golden_loss(loss, model->forward(input));
    losses.push_back(value.item<double>());
    value.backward();
    torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.01);
  }
  return losses;
}

std::string difference(const Record& actual, const Record& golden, double tolerance) {
  Differences differences(tolerance);
  if (!golden.shape.empty()) {
    differences.expect_equal("shape", at::IntArrayRef(actual.shape), at::IntArrayRef(golden.shape));
  }
  // Sums may cancel, so their error is relative to the sum of absolute values.
  differences.compare("sum", actual.sum, golden.sum, golden.abs_sum);
  differences.compare("abs_sum", actual.abs_sum, golden.abs_sum, golden.abs_sum);
  differences.compare("weighted_sum", actual.weighted_sum, golden.weighted_sum, golden.abs_sum);
  differences.compare("first", actual.first, golden.first, actual.max_abs);
  differences.compare("last", actual.last, golden.last, actual.max_abs);
  return differences.text();
}

std::string difference(const GradientRecord& actual, const GradientRecord& golden,
                       double tolerance) {
  Differences differences(tolerance);
  const double total = golden.total_abs_sum;
  differences.compare("total_abs_sum", actual.total_abs_sum, total, total);
  differences.compare("total_sum", actual.total_sum, golden.total_sum, total);
  differences.compare("first parameter", actual.first_parameter, golden.first_parameter,
                      actual.first_max_abs);
  differences.compare("last parameter", actual.last_parameter, golden.last_parameter,
                      actual.last_max_abs);
  if (!golden.abs_sums.empty()) {
    std::vector<double> abs_sums = actual.abs_sums;
    for (size_t i = 0; i < std::min(abs_sums.size(), golden.abs_sums.size()); ++i) {
      if (golden.abs_sums[i] == 0 && abs_sums[i] < kZeroGradient) abs_sums[i] = 0;
    }
    differences.compare("abs_sums", abs_sums, golden.abs_sums, 0);
  }
  return differences.text();
}

std::string difference(const BufferRecord& actual, const BufferRecord& golden, double tolerance) {
  Differences differences(tolerance);
  differences.compare("mean_sum", actual.mean_sum, golden.mean_sum, golden.mean_abs_sum);
  differences.compare("mean_abs_sum", actual.mean_abs_sum, golden.mean_abs_sum,
                      golden.mean_abs_sum);
  differences.compare("var_sum", actual.var_sum, golden.var_sum, golden.var_sum);
  differences.expect_equal("batches", actual.batches, golden.batches);
  double mean_scale = 0;
  for (double mean : golden.first_mean) mean_scale = std::max(mean_scale, std::abs(mean));
  differences.compare("first_mean", actual.first_mean, golden.first_mean, mean_scale);
  differences.compare("first_var", actual.first_var, golden.first_var, 0);
  return differences.text();
}

std::string difference(const std::vector<TraceEntry>& actual, const std::vector<TraceEntry>& golden,
                       double tolerance) {
  Differences differences(tolerance);
  differences.expect_equal("number of layers", actual.size(), golden.size());
  for (size_t i = 0; i < std::min(actual.size(), golden.size()); ++i) {
    differences.expect_equal("layer " + std::to_string(i), actual[i].layer, golden[i].layer);
    differences.compare(golden[i].layer, actual[i].abs_sums, golden[i].abs_sums, 0);
  }
  return differences.text();
}

std::string difference(const std::vector<double>& actual, const std::vector<double>& golden,
                       double tolerance) {
  Differences differences(tolerance);
  differences.compare("value", actual, golden, 0);
  return differences.text();
}

std::string difference(double actual, double golden, double tolerance) {
  return difference(std::vector<double>{actual}, {golden}, tolerance);
}

const std::vector<Case>& golden_cases() {
  static const auto cases = [] {
    std::vector<Case> cases;
    for (const auto& json : golden().at("cases")) {
      Case golden_case{json.at("label"),
                       json.at("input_shape").get<std::vector<int64_t>>(),
                       json.at("loss"),
                       to_tolerance(json.at("tolerance")),
                       json.at("parameters"),
                       json.at("layers"),
                       json.at("state_entries"),
                       json.at("parameter_names").get<std::vector<std::string>>(),
                       {}};
      for (const auto& [kind, results] : json.at("fills").items()) {
        golden_case.fills.emplace(kind, to_results(results));
      }
      cases.push_back(std::move(golden_case));
    }
    return cases;
  }();
  return cases;
}

const std::vector<PipelineRun>& golden_pipeline_runs() {
  static const auto runs = [] {
    std::vector<PipelineRun> runs;
    for (const auto& json : golden().at("pipeline_runs")) {
      runs.push_back(
          {json.at("label"), json.at("input_shape").get<std::vector<int64_t>>(), json.at("loss"),
           to_tolerance(json.at("tolerance")), json.at("balance").get<std::vector<int64_t>>(),
           json.at("chunks"), json.at("checkpoint"), json.at("deferred_batch_norm"),
           json.at("fill"), json.at("micro_batch_sizes").get<std::vector<int64_t>>(),
           to_record(json.at("train")), json.at("train_loss"), to_gradients(json.at("gradients")),
           to_buffers(json), to_record(json.at("eval_after"))});
    }
    return runs;
  }();
  return runs;
}

const Case& golden_case(const std::string& label) {
  for (const auto& golden_case : golden_cases()) {
    if (golden_case.label == label) return golden_case;
  }
  throw std::out_of_range("no golden case has the label '" + label + "'");
}

bool operator==(const Counts& a, const Counts& b) {
  return a.parameters == b.parameters && a.parameter_tensors == b.parameter_tensors &&
         a.buffer_tensors == b.buffer_tensors && a.buffer_elements == b.buffer_elements &&
         a.layers == b.layers && a.skippables == b.skippables;
}

std::ostream& operator<<(std::ostream& stream, const Counts& counts) {
  return stream << "{" << counts.parameters << ", " << counts.parameter_tensors << ", "
                << counts.buffer_tensors << ", " << counts.buffer_elements << ", " << counts.layers
                << ", " << counts.skippables << "}";
}

Counts count(const torch::nn::Sequential& model) {
  Counts counts{};
  for (const auto& parameter : model->parameters()) {
    counts.parameters += parameter.numel();
    ++counts.parameter_tensors;
  }
  for (const auto& buffer : model->buffers()) {
    counts.buffer_elements += buffer.numel();
    ++counts.buffer_tensors;
  }
  counts.layers = static_cast<int64_t>(model->size());
  const torch::nn::Module& module = *model.ptr();
  counts.skippables = static_cast<int64_t>(skip::skippables_of(module).size());
  return counts;
}

}  // namespace gpipe::models::testing
