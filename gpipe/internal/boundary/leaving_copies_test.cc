#include "gpipe/internal/boundary/leaving_copies.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;
using testing::EqualsBitwise;

std::vector<const at::Tensor*> pointers(const Tensors& tensors) {
  std::vector<const at::Tensor*> result;
  for (const at::Tensor& tensor : tensors) result.push_back(&tensor);
  return result;
}

bool is_copied(const Tensors& leaving, size_t which) {
  const LeavingCopies copies(/*record=*/true, ModelState(), pointers(leaving), {});
  return copies.of(leaving[which]).defined();
}

TEST(LeavingCopiesTest, WhatNobodyElseHoldsLeavesAsItIs) {
  Tensors alone(1);  // an initializer list would also hold a reference
  alone[0] = at::ones({4});
  EXPECT_FALSE(is_copied(alone, 0));
  alone[0] = at::ones({4}).view({2, 2});
  EXPECT_FALSE(is_copied(alone, 0)) << "no other tensor has the base";
}

TEST(LeavingCopiesTest, WhatALayerKeepsLeavesAsACopy) {
  const at::Tensor kept = at::arange(4.0);
  EXPECT_TRUE(is_copied({kept}, 0));
  EXPECT_TRUE(is_copied({kept.view({2, 2})}, 0));
  EXPECT_TRUE(is_copied({at::ones({4}), kept}, 1));
  const at::Tensor leaving = kept;
  const LeavingCopies copies(true, ModelState(), {&leaving}, {});
  const at::Tensor copy = copies.of(kept);
  EXPECT_THAT(copy, EqualsBitwise(kept));
  EXPECT_FALSE(copy.is_alias_of(kept));
}

TEST(LeavingCopiesTest, ValuesOverOneMemoryShareACopy) {
  const at::Tensor kept = at::arange(6.0);
  const at::Tensor a = kept.narrow(0, 0, 4);
  const at::Tensor b = kept.narrow(0, 2, 4);
  const LeavingCopies copies(true, ModelState(), {&a, &b}, {});
  const at::Tensor of_a = copies.of(a);
  const at::Tensor of_b = copies.of(b);
  EXPECT_TRUE(of_a.is_alias_of(of_b));
  EXPECT_FALSE(of_a.is_alias_of(kept));
  EXPECT_THAT(of_a, EqualsBitwise(a));
  EXPECT_THAT(of_b, EqualsBitwise(b));
}

// Tensors over one memory read it as complex, as conjugated, as real and imaginary parts, and as
// bits. Whichever of them leave together, their copies share memory and are read in the same ways.
TEST(LeavingCopiesTest, EachReadsTheSharedCopyInItsOwnWay) {
  const at::Tensor kept = at::view_as_complex(at::arange(1.0, 13.0).view({6, 2}));
  const at::Tensor reals = at::view_as_real(kept);
  const Tensors views = {
      kept.narrow(0, 2, 3), kept.conj(),           reals,
      at::real(kept),       at::imag(kept.conj()), reals.narrow(0, 1, 4).view(at::kInt),
      kept.narrow(0, 1, 0)};
  for (size_t a = 0; a < views.size(); ++a) {
    for (size_t b = 0; b < views.size(); ++b) {
      for (size_t c = 0; c < views.size(); ++c) {
        SCOPED_TRACE(std::to_string(a) + ", " + std::to_string(b) + ", " + std::to_string(c));
        const Tensors leaving = {views[a], views[b], views[c]};
        const LeavingCopies copies(true, ModelState(), pointers(leaving), {});
        at::Tensor first;
        for (const at::Tensor& tensor : leaving) {
          const at::Tensor copy = copies.of(tensor);
          ASSERT_EQ(copy.defined(), tensor.numel() > 0);
          if (!copy.defined()) continue;
          EXPECT_EQ(copy.dtype(), tensor.dtype());
          EXPECT_EQ(copy.is_conj(), tensor.is_conj());
          EXPECT_EQ(copy.strides(), tensor.strides());
          EXPECT_THAT(copy.resolve_conj().resolve_neg(),
                      EqualsBitwise(tensor.resolve_conj().resolve_neg()));
          EXPECT_FALSE(copy.is_alias_of(kept));
          if (!first.defined()) first = copy;
          EXPECT_TRUE(copy.is_alias_of(first));
          const auto before = first._version();
          copy.zero_();
          EXPECT_GT(first._version(), before) << "a change of one is a change of all";
          copies.of(tensor).copy_(tensor);
        }
      }
    }
  }
}

TEST(LeavingCopiesTest, SoDoTensorsWithoutPlainMemory) {
  const at::Tensor csr = at::arange(4.0).view({2, 2}).to_sparse_csr();
  EXPECT_TRUE(is_copied({csr}, 0));
  const at::Tensor quantized =
      at::quantize_per_tensor(at::arange(4.0, at::kFloat), 0.5, 0, at::kQInt8);
  EXPECT_TRUE(is_copied({quantized}, 0));
  Tensors alone(1);
  alone[0] = at::arange(4.0).view({2, 2}).to_sparse_csr();
  EXPECT_FALSE(is_copied(alone, 0)) << "no other tensor has its memory";
}

TEST(LeavingCopiesTest, AFrozenParameterIsCopiedWhereNothingTellsOfChanges) {
  torch::nn::Linear linear(2, 2);
  linear->weight.set_requires_grad(false);
  std::vector<Layer> layers;
  layers.push_back({torch::nn::AnyModule(linear), "linear", 0, skip::CallPlan(*linear)});
  const ModelState model({&layers});
  const at::Tensor leaving = linear->weight;
  EXPECT_FALSE(LeavingCopies(/*record=*/true, model, {&leaving}, {}).of(leaving).defined());
  EXPECT_TRUE(LeavingCopies(/*record=*/false, model, {&leaving}, {}).of(leaving).defined());
}

TEST(LeavingCopiesTest, WhatWantsAGradientOrMustStayTheirsDoesNot) {
  const at::Tensor leaf = at::ones({4}).requires_grad_();
  const at::Tensor computed = leaf * 2;
  EXPECT_FALSE(is_copied({computed}, 0))
      << "a computed tensor is not copied, because autograd notices its changes";
  const at::Tensor again = computed;
  EXPECT_TRUE(LeavingCopies(/*record=*/false, ModelState(), {&again}, {}).of(again).defined())
      << "but there is no graph if no backward will follow";
  const at::Tensor kept = at::ones({4});
  const at::Tensor leaving = kept;
  const LeavingCopies shared(true, ModelState(), {&leaving}, {kept.storage().getWeakStorageImpl()});
  EXPECT_FALSE(shared.of(kept).defined());
}

TEST(WeakStoragesTest, AFreedMemorysAddressIsNobodys) {
  at::Tensor tensor = at::ones({4});
  const c10::StorageImpl* storage = storage_of(tensor);
  const WeakStorages storages = {tensor.storage().getWeakStorageImpl()};
  EXPECT_TRUE(contains(storages, storage));
  EXPECT_FALSE(contains(storages, storage_of(at::ones({4}))));
  tensor = at::Tensor();
  EXPECT_FALSE(contains(storages, storage));
}

}  // namespace
}  // namespace gpipe::internal
