#include "meta/testing/same_on_meta.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <exception>
#include <sstream>

#include "meta/meta_kernels.h"

namespace gpipe::testing {

at::Tensor Trial::data(at::IntArrayRef sizes, c10::ScalarType type) {
  if (on_meta_) return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
  return at::rand(sizes, at::kFloat).to(type);
}

at::Tensor Trial::leaf(at::IntArrayRef sizes, c10::ScalarType type) {
  leaves_.push_back(data(sizes, type).requires_grad_());
  return leaves_.back();
}

at::Tensor Trial::leaf(at::IntArrayRef sizes, c10::MemoryFormat format) {
  leaves_.push_back(data(sizes).contiguous(format).requires_grad_());
  return leaves_.back();
}

at::Tensor Trial::integers(int64_t below, at::IntArrayRef sizes) {
  if (on_meta_) return data(sizes, at::kLong);
  return at::randint(below, sizes, at::kLong);
}

std::string description(const at::Tensor& x) {
  if (!x.defined()) return "undefined";
  std::ostringstream text;
  text << x.sizes() << " strides [";
  for (int64_t d = 0; x.numel() > 0 && d < x.dim(); ++d) {
    text << (d > 0 ? ", " : "");
    x.size(d) == 1 ? text << "-" : text << x.stride(d);
  }
  text << "] " << x.dtype() << (x.requires_grad() ? " requires grad" : "");
  return text.str();
}

std::vector<std::string> Trial::describe(const std::vector<at::Tensor>& outputs) {
  std::vector<std::string> lines;
  std::vector<at::Tensor> roots, grads;
  for (const at::Tensor& output : outputs) {
    lines.push_back("output " + std::to_string(&output - outputs.data()) + ": " +
                    description(output));
    if (output.defined() && output.is_meta() != on_meta_) lines.push_back("on the wrong device");
    if (!output.defined() || !output.requires_grad()) continue;
    roots.push_back(output);
    grads.push_back(at::ones_like(output));
  }
  if (!roots.empty()) torch::autograd::backward(roots, grads);
  for (size_t k = 0; k < leaves_.size(); ++k) {
    lines.push_back("gradient " + std::to_string(k) + ": " + description(leaves_[k].grad()));
  }
  for (const auto& module : modules_) {
    for (const auto& item : module->named_parameters()) {
      lines.push_back("gradient of " + item.key() + ": " + description(item.value().grad()));
    }
    for (const auto& item : module->named_buffers()) {
      lines.push_back("buffer " + item.key() + ": " + description(item.value()));
    }
  }
  return lines;
}

::testing::AssertionResult same_on_meta(const Computation& computation) {
  install_meta_kernels();
  std::vector<std::string> lines[2];
  for (const bool on_meta : {false, true}) {
    try {
      Trial trial(on_meta);
      lines[on_meta] = trial.describe(computation(trial));
    } catch (const std::exception& error) {
      return ::testing::AssertionFailure()
             << (on_meta ? "meta: " : "CPU: ") << std::string(error.what()).substr(0, 600);
    }
  }
  const auto& [expected, got] = lines;
  auto result = ::testing::AssertionFailure();
  for (size_t k = 0; k < std::max(expected.size(), got.size()); ++k) {
    const std::string a = k < expected.size() ? expected[k] : "nothing";
    const std::string b = k < got.size() ? got[k] : "nothing";
    if (a != b) result << "\n  CPU  " << a << "\n  meta " << b;
  }
  return expected == got ? ::testing::AssertionSuccess() : result;
}

void expect_same_on_meta(const std::vector<Case>& cases) {
  for (const Case& each : cases) EXPECT_TRUE(same_on_meta(each.run)) << each.name;
}

}  // namespace gpipe::testing
