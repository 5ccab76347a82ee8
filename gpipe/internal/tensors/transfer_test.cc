#include "gpipe/internal/tensors/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/packet_of.h"

namespace gpipe::internal {
namespace {

using testing::device;
using testing::EqualsBitwise;
using testing::packet_of;
using testing::slow_work;

using Transfer = testing::DeviceTest;

TEST_F(Transfer, NothingIsCopiedWithinADevice) {
  const at::Tensor tensor = torch::ones({10}, device());
  Packet packet = packet_of({tensor, at::Tensor()});
  Transfers().depart(packet, device());
  arrive(packet, device());
  EXPECT_TRUE(packet.items[0].tensor.is_same(tensor));
  EXPECT_FALSE(packet.items[1].tensor.defined());
  EXPECT_TRUE(packet.ready.empty());
}

TEST_F(Transfer, FromTheHostToTheDevice) {
  const at::Tensor tensor = torch::arange(100.0);
  Packet packet = packet_of({tensor, tensor.view({10, 10}).t()});
  Transfers().depart(packet, device());
  arrive(packet, device());
  EXPECT_TRUE(packet.ready.empty());
  for (const Item& item : packet.items) {
    EXPECT_EQ(item.tensor.device(), device());
    EXPECT_EQ(item.tensor.sum().item<double>(), 4950);
  }
  EXPECT_THAT(packet.items[1].tensor.cpu(), EqualsBitwise(tensor.view({10, 10}).t()));
}

TEST_F(Transfer, FromASlowDeviceToTheHost) {
  slow_work(device());
  const at::Tensor tensor = torch::ones({100}, device()) * 3;
  Packet packet = packet_of({tensor, tensor.view({10, 10}).t()});
  Transfers().depart(packet, c10::kCPU);
  arrive(packet, c10::kCPU);
  EXPECT_TRUE(packet.ready.empty());
  for (const Item& item : packet.items) {
    EXPECT_TRUE(item.tensor.device().is_cpu());
    EXPECT_EQ(item.tensor.sum().item<double>(), 300);
  }
}

TEST_F(Transfer, IntoMemoryThatIsThere) {
  for (const auto& [source, target] : {std::pair(device(0), device(1)),
                                       {c10::Device(c10::kCPU), device(0)},
                                       {device(0), c10::Device(c10::kCPU)}}) {
    if (source == target) continue;
    SCOPED_TRACE(source.str() + " to " + target.str());
    Transfers transfers;
    slow_work(source);
    const at::Tensor from = torch::ones({100}, source) * 3;
    slow_work(target);
    const at::Tensor into = torch::zeros({100}, target);
    const at::Tensor before = into * 1;
    transfers.copy_into(into, from);
    const at::Tensor after = into * 1;
    if (!source.is_cpu()) transfers.let_follow(current_stream(source));
    from.fill_(7);
    EXPECT_EQ(before.cpu().sum().item<double>(), 0);
    EXPECT_EQ(after.cpu().sum().item<double>(), 300);
  }
}

// --- The layout of what arrives.

at::Tensor sent(const at::Tensor& tensor, c10::Device target) {
  Packet packet = packet_of({tensor});
  Transfers().depart(packet, target);
  arrive(packet, target);
  return packet.items[0].tensor;
}

// The ways that a packet may take: from device to device, from the host, and to the host.
struct Way {
  std::string name;
  c10::Device from;
  c10::Device to;
};

std::vector<Way> ways() {
  const c10::Device host(c10::kCPU);
  return {{"between devices", device(0), device(1)},
          {"from the host", host, device()},
          {"to the host", device(), host}};
}

uintptr_t place_of(const at::Tensor& tensor, uintptr_t line) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % line;
}

void expect_same_place(const at::Tensor& have, const at::Tensor& want) {
  // The shorter of the two devices' lines counts, which is the host's line if the host takes part.
  const uintptr_t line = std::min(line_bytes(want.device()), line_bytes(have.device()));
  EXPECT_EQ(place_of(have, line), place_of(want, line));
}

void expect_same_layout(const at::Tensor& have, const at::Tensor& want) {
  EXPECT_EQ(have.sizes(), want.sizes());
  EXPECT_EQ(have.strides(), want.strides());
  EXPECT_EQ(have.is_conj(), want.is_conj());
  EXPECT_EQ(have.is_neg(), want.is_neg());
  expect_same_place(have, want);
}

void expect_same_values(const at::Tensor& have, const at::Tensor& want) {
  EXPECT_THAT(have.cpu().contiguous(), EqualsBitwise(want.cpu().contiguous()));
}

at::Tensor numbers(c10::IntArrayRef shape, c10::Device where) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return torch::arange(static_cast<double>(count)).to(torch::kFloat).view(shape).to(where);
}

struct Sample {
  std::string name;
  at::Tensor tensor;
};

// Tensors that take one run of memory. Elements that a tensor repeats take memory once.
std::vector<Sample> without_gaps(c10::Device where) {
  const at::Tensor base = numbers({6, 5, 4}, where);
  return {{"contiguous", base},
          {"one number", base[3][2][1]},
          {"further in a line", base.narrow(0, 1, 4)},
          {"transposed", base.transpose(0, 2)},
          {"transposed, further in a line", base.narrow(0, 3, 2).transpose(1, 2)},
          {"one number expanded", base[1][2][3].expand({1000, 70})},
          {"a row expanded", base[2][1].expand({3, 1000, 4})},
          {"a column of rows expanded", base[1].unsqueeze(1).expand({5, 100, 4}).transpose(0, 2)},
          {"overlapping windows", base.flatten().unfold(0, 5, 2)}};
}

std::vector<Sample> with_gaps(c10::Device where) {
  const at::Tensor base = numbers({6, 5, 4}, where);
  return {{"narrow", base.narrow(-1, 1, 2)},
          {"one column", base.select(-1, 3)},
          {"every second row", base.slice(0, 0, 6, 2)},
          {"narrow and transposed", base.narrow(1, 2, 2).transpose(0, 2)},
          {"narrow and expanded", base.narrow(-1, 0, 1).expand({6, 5, 9})},
          {"windows with gaps", base.flatten().unfold(0, 7, 11).narrow(-1, 2, 2)}};
}

TEST_F(Transfer, ACopyHasTheStridesAndThePlaceInALine) {
  for (const Way& way : ways()) {
    for (const Sample& sample : without_gaps(way.from)) {
      SCOPED_TRACE(sample.name + " " + way.name);
      const at::Tensor copy = sent(sample.tensor, way.to);
      expect_same_layout(copy, sample.tensor);
      expect_same_values(copy, sample.tensor);
    }
  }
}

TEST_F(Transfer, RepeatedElementsAreCopiedOnce) {
  for (const Way& way : ways()) {
    if (way.from == way.to) continue;
    for (const Sample& sample : without_gaps(way.from)) {
      SCOPED_TRACE(sample.name + " " + way.name);
      const MemoryRange range = memory_range(sample.tensor);
      EXPECT_LE(
          sent(sample.tensor, way.to).storage().nbytes(),
          static_cast<size_t>(range.end - range.begin) * sizeof(float) + line_bytes(device()));
    }
  }
}

TEST_F(Transfer, SmallViewsKeepTheirGaps) {
  for (const Way& way : ways()) {
    for (const Sample& sample : with_gaps(way.from)) {
      SCOPED_TRACE(sample.name + " " + way.name);
      const at::Tensor copy = sent(sample.tensor, way.to);
      expect_same_layout(copy, sample.tensor);
      expect_same_values(copy, sample.tensor);
    }
  }
}

// The slice of half of each row, with its gaps, takes twice the memory of its elements, so it keeps
// the gaps. A slice of a third would take three times the memory, so it loses them.
TEST_F(Transfer, LargeViewsKeepTheirGapsWhereThatTakesTwiceTheMemoryAtMost) {
  constexpr int64_t kRows = 4096;
  for (const Way& way : ways()) {
    if (way.from == way.to) continue;
    SCOPED_TRACE(way.name);
    const at::Tensor base = numbers({kRows, 12}, way.from);
    const at::Tensor half = base.narrow(1, 6, 6);
    expect_same_layout(sent(half, way.to), half);
    expect_same_values(sent(half, way.to), half);
    for (const at::Tensor& third : {base.narrow(1, 3, 4), base.narrow(1, 3, 4).t()}) {
      const at::Tensor copy = sent(third, way.to);
      EXPECT_EQ(copy.storage().nbytes(), third.numel() * sizeof(float));
      EXPECT_EQ(copy.is_contiguous(), third.stride(-1) == 1) << "the order of the dimensions";
      EXPECT_TRUE(copy.is_non_overlapping_and_dense());
      expect_same_values(copy, third);
    }
    const at::Tensor expanded = base.narrow(1, 3, 1).unsqueeze(0).expand({50, kRows, 1});
    const at::Tensor copy = sent(expanded, way.to);
    EXPECT_EQ(copy.stride(0), 0);
    EXPECT_EQ(copy.storage().nbytes(), kRows * sizeof(float));
    expect_same_values(copy, expanded);
  }
}

// Returns the elements as they lie in memory.
at::Tensor bits_of(const at::Tensor& tensor) {
  at::Tensor bits = detached_alias(tensor);
  if (bits.is_conj()) bits._set_conj(false);
  if (bits.is_neg()) bits._set_neg(false);
  return bits.is_complex() ? torch::view_as_real(bits) : bits;
}

TEST_F(Transfer, LazyConjugatesStayLazy) {
  if (device().is_privateuseone()) GTEST_SKIP() << "the fake accelerator has no views as complex";
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const at::Tensor conjugate =
        torch::view_as_complex(numbers({3, 4, 2}, way.from)).transpose(0, 1).conj();
    const at::Tensor negative = torch::imag(conjugate);
    ASSERT_TRUE(conjugate.is_conj());
    ASSERT_TRUE(negative.is_neg());
    for (const at::Tensor& tensor : {conjugate, negative}) {
      const at::Tensor copy = sent(tensor, way.to);
      EXPECT_EQ(copy.is_conj(), tensor.is_conj());
      EXPECT_EQ(copy.is_neg(), tensor.is_neg());
      expect_same_values(bits_of(copy), bits_of(tensor));
    }
    expect_same_layout(sent(conjugate, way.to), conjugate);
  }
}

// If the arrived tensor were a view of a tensor unknown to autograd, autograd would refuse to
// change it in place.
TEST_F(Transfer, WhatArrivesMayBeChangedInPlace) {
  const at::Tensor narrow = numbers({6, 5}, device(0)).narrow(1, 1, 3);
  const at::Tensor leaf = detached_alias(sent(narrow, device(1))).requires_grad_();
  EXPECT_FALSE(leaf.is_view());
  (leaf * 1).mul_(2).sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
  if (device(0) == device(1)) return;
  const at::Tensor copy = sent(narrow, device(1));
  EXPECT_FALSE(copy.is_view());
  copy.mul_(torch::ones({3}, device(1)).requires_grad_()).sum().backward();
}

TEST_F(Transfer, ATensorWithoutElementsTravels) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const at::Tensor none = numbers({3, 4}, way.from).narrow(0, 1, 0);
    EXPECT_EQ(sent(none, way.to).sizes(), none.sizes());
  }
}

TEST_F(Transfer, TheScopeOfTheCurrentStreamChangesNothing) {
  const c10::Stream before = current_stream(device());
  {
    StreamScope scope(before);
    EXPECT_EQ(current_stream(device()), before);
  }
  EXPECT_EQ(current_stream(device()), before);
  EXPECT_EQ(before.device(), device());
}

}  // namespace
}  // namespace gpipe::internal
