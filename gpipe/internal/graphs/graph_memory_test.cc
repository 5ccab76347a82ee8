#include "gpipe/internal/graphs/graph_memory.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstdint>
#include <set>
#include <vector>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

using testing::device;
using testing::EqualsBitwise;
using GraphMemoryOfDevice = testing::DeviceTest;

LayoutKey key_of(const at::Tensor& tensor) {
  LayoutKey key;
  add_layout(key, tensor);
  add_place(key, tensor);
  return key;
}

// Tensors of several layouts: dense, transposed, repeated, or beginning within a cache line.
std::vector<at::Tensor> layouts() {
  const at::Tensor base = torch::randn({4, 6});
  return {base,
          base.t(),
          torch::randn({6}).expand({4, 6}),
          torch::randn({1}).expand({4, 6}),
          torch::randn({4, 1}).expand({4, 6}),
          base.flatten().slice(0, 3),
          torch::randn({}),
          torch::randn({0, 3}),
          torch::arange(5)};
}

TEST(GraphMemory, HasTheLayoutAndTakesTheValues) {
  for (const at::Tensor& tensor : layouts()) {
    SCOPED_TRACE(::testing::PrintToString(key_of(tensor)));
    ASSERT_TRUE(can_be_filled(tensor));
    const at::Tensor memory = memory_like(tensor);
    EXPECT_EQ(key_of(memory), key_of(tensor));
    EXPECT_NE(storage_of(memory), storage_of(tensor));
    fill_memory(memory, tensor);
    EXPECT_THAT(memory, EqualsBitwise(tensor));
    const at::Tensor copy = copy_out(memory);
    EXPECT_EQ(key_of(copy), key_of(tensor));
    EXPECT_THAT(copy, EqualsBitwise(tensor));
  }
}

// A micro-batch may begin anywhere in a cache line if its rows have an odd number of elements.
// Copies begin at the same place in the line.
TEST_F(GraphMemoryOfDevice, HasThePlacesOfOddRows) {
  const uintptr_t line = device().is_cpu() ? 64 : 256;
  const at::Tensor base = torch::arange(7 * 100, torch::device(device())).to(torch::kFloat);
  std::set<LayoutKey> keys;
  std::set<uintptr_t> places;
  for (int64_t row = 0; row < 100; ++row) {
    const at::Tensor tensor = base.narrow(0, 7 * row, 7);
    const auto place = [&](const at::Tensor& t) {
      return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % line;
    };
    LayoutKey key;
    add_place(key, tensor);
    keys.insert(key);
    places.insert(place(tensor));
    const at::Tensor memory = memory_like(tensor);
    fill_memory(memory, tensor);
    for (const at::Tensor& copy : {memory, copy_out(tensor), copy_in_layout(tensor)}) {
      EXPECT_EQ(place(copy), place(tensor)) << row;
      EXPECT_THAT(testing::on_host(copy), EqualsBitwise(testing::on_host(tensor))) << row;
    }
  }
  EXPECT_EQ(places.size(), line / sizeof(float));
  EXPECT_EQ(keys.size(), places.size());
}

TEST(GraphMemory, GapsAndOverlapsCannotBeFilled) {
  EXPECT_FALSE(can_be_filled(torch::randn({4, 6}).slice(1, 0, 3)));
  EXPECT_FALSE(can_be_filled(torch::randn({8}).as_strided({4, 3}, {1, 1})));
  EXPECT_FALSE(can_be_filled(torch::randn({3}).to_sparse()));
}

TEST(GraphMemory, KeysDifferWhereKernelsMay) {
  const at::Tensor tensor = torch::randn({4, 4});
  EXPECT_EQ(key_of(tensor), key_of(torch::zeros({4, 4})));
  EXPECT_NE(key_of(tensor), key_of(tensor.t()));
  EXPECT_NE(key_of(tensor), key_of(tensor.flatten()));
  EXPECT_NE(key_of(tensor), key_of(tensor.to(torch::kDouble)));
  EXPECT_NE(key_of(tensor), key_of(at::Tensor()));
  const at::Tensor first = tensor.flatten().slice(0, 0, 4);
  const at::Tensor second = tensor.flatten().slice(0, 1, 5);
  EXPECT_NE(key_of(first), key_of(second));
  LayoutKey of_first, of_second;
  add_layout(of_first, first);
  add_layout(of_second, second);
  EXPECT_EQ(of_first, of_second) << "only their places in memory differ";
}

TEST(GraphMemory, FillingAnAliasIsNotAChangeForAutograd) {
  const at::Tensor memory = torch::zeros({3});
  const int64_t version = version_of(memory);
  fill_memory(alias_to_fill(memory), torch::ones({3}));
  EXPECT_EQ(version_of(memory), version);
  EXPECT_THAT(memory, EqualsBitwise(torch::ones({3})));
  EXPECT_FALSE(alias_to_fill(at::Tensor()).defined());
}

TEST(GraphMemory, AnUnownedAliasKeepsNothing) {
  at::Tensor memory = torch::arange(6).view({2, 3}).t().to(torch::kFloat);
  const auto count = memory.storage().use_count();
  const at::Tensor alias = unowned_alias(memory);
  EXPECT_EQ(memory.storage().use_count(), count);
  EXPECT_EQ(alias.const_data_ptr(), memory.const_data_ptr());
  EXPECT_THAT(alias, EqualsBitwise(memory));
  EXPECT_FALSE(unowned_alias(at::Tensor()).defined());
}

}  // namespace
}  // namespace gpipe::internal
