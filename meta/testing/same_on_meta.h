// same_on_meta: checks that a computation gives the same on meta tensors as on the CPU.
#ifndef META_TESTING_SAME_ON_META_H_
#define META_TESTING_SAME_ON_META_H_

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meta/meta_scope.h"

namespace gpipe::testing {

// One of the two runs of a computation: makes its tensors and modules on the run's device.
class Trial {
 public:
  explicit Trial(bool on_meta) : on_meta_(on_meta) {}
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // A leaf whose gradient is compared. On the CPU it has random numbers.
  at::Tensor leaf(at::IntArrayRef sizes, c10::ScalarType type = at::kFloat);
  // A leaf that has the strides of `format`.
  at::Tensor leaf(at::IntArrayRef sizes, c10::MemoryFormat format);
  // A tensor of random numbers that needs no gradient.
  at::Tensor data(at::IntArrayRef sizes, c10::ScalarType type = at::kFloat);
  // Integers from 0 to `below` - 1.
  at::Tensor integers(int64_t below, at::IntArrayRef sizes);

  // Returns the module that `make` builds; its buffers and its parameters' gradients are compared.
  template <typename Make>
  auto module(Make make) {
    std::optional<MetaScope> scope;
    if (on_meta_) scope.emplace();
    auto built = make();
    modules_.push_back(built.ptr());
    return built;
  }

  bool on_meta() const { return on_meta_; }

  // Runs the backward of those `outputs` that require a gradient. Returns a line for each output,
  // each gradient and each buffer of a module: its sizes, strides and type.
  std::vector<std::string> describe(const std::vector<at::Tensor>& outputs);

 private:
  bool on_meta_;
  std::vector<at::Tensor> leaves_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
};

// The sizes, strides and type of a tensor, and whether it requires a gradient. Strides that place
// no element (of dimensions of size one, of tensors without elements) are left out.
std::string description(const at::Tensor& x);

using Computation = std::function<std::vector<at::Tensor>(Trial& trial)>;
struct Case {
  std::string name;
  Computation run;
};

// Runs the computation on the CPU and on meta. A failure says where the two differ, or what was
// thrown on meta.
::testing::AssertionResult same_on_meta(const Computation& computation);

// Expects same_on_meta() of each case. A failure has the name of the case.
void expect_same_on_meta(const std::vector<Case>& cases);

}  // namespace gpipe::testing

#endif  // META_TESTING_SAME_ON_META_H_
