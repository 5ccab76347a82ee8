#include "meta/meta_kernels.h"

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor on_meta(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
}

// A kernel for relu that this process has registered first. Its result is a vector, unlike that of
// LibTorch's relu.
at::Tensor other_relu(const at::Tensor& self) { return at::empty({self.numel()}, self.options()); }

// The kernels are installed once in a process, so all checks of installing are in one test.
TEST(InstallMetaKernels, AddsWhatIsMissingAndReplacesNothing) {
  EXPECT_THROW(at::hardswish(on_meta({2, 3})), c10::Error);
  static torch::Library earlier(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                                __LINE__);
  earlier.impl("relu", &other_relu);

  // Two threads install the kernels at the same time, which is allowed.
  std::thread other([] { install_meta_kernels(); });
  install_meta_kernels();
  other.join();
  install_meta_kernels();

  EXPECT_EQ(at::hardswish(on_meta({2, 3})).sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_EQ(at::relu(on_meta({2, 3})).sizes(), (at::IntArrayRef{6}));
  EXPECT_EQ(at::relu(at::ones({2, 3})).sizes(), (at::IntArrayRef{2, 3}));
}

TEST(InstallMetaKernels, LeavesNoMemoryAndNoTime) {
  install_meta_kernels();
  constexpr int64_t n = int64_t{1} << 14;
  const at::Tensor x = on_meta({n, n, n}).requires_grad_();
  at::hardswish(x).sum().backward();
  EXPECT_EQ(x.grad().numel(), n * n * n);
}

// at::equal() on meta must recognize the same tensor, because attention uses its weights in another
// way if it is given one tensor three times.
TEST(InstallMetaKernels, OneTensorEqualsItselfAndNoOther) {
  install_meta_kernels();
  const at::Tensor x = on_meta({2, 3});
  EXPECT_TRUE(at::equal(x, x));
  EXPECT_TRUE(at::equal(x, x.detach()));
  EXPECT_FALSE(at::equal(x, x.clone()));
  EXPECT_FALSE(at::equal(x, x.transpose(0, 1)));
  EXPECT_FALSE(at::equal(x.select(0, 0), x.select(0, 1)));
}

// These operators cannot run on meta, because their results, or the sizes of the results, depend on
// values.
TEST(InstallMetaKernels, WhatDependsOnValuesIsAnErrorThatNamesTheOperator) {
  install_meta_kernels();
  const std::vector<std::pair<const char*, std::function<void(const at::Tensor&)>>> cases = {
      {"aten::_local_scalar_dense", [](const at::Tensor& x) { x.select(0, 0).item(); }},
      {"aten::nonzero", [](const at::Tensor& x) { at::nonzero(x); }},
      {"aten::masked_select", [](const at::Tensor& x) { at::masked_select(x, x > 0); }},
      {"aten::nonzero", [](const at::Tensor& x) { x.index({x > 0}); }},
      {"aten::_unique2", [](const at::Tensor& x) { at::_unique2(x); }},
      {"aten::unique_consecutive", [](const at::Tensor& x) { at::unique_consecutive(x); }},
      {"aten::bincount", [](const at::Tensor& x) { at::bincount(x.to(at::kLong)); }},
      {"aten::repeat_interleave.Tensor",
       [](const at::Tensor& x) { at::repeat_interleave(x.to(at::kLong)); }},
  };
  for (const auto& [name, run] : cases) {
    EXPECT_THAT([&run = run] { run(on_meta({3})); },
                ThrowsMessage<c10::NotImplementedError>(HasSubstr(name)));
  }
}

}  // namespace
}  // namespace gpipe
