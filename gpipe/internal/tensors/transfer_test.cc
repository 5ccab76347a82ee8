#include "gpipe/internal/tensors/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

using testing::device;
using testing::EqualsBitwise;
using testing::slow_work;

using Transfer = testing::DeviceTest;

Packet packet_of(std::vector<at::Tensor> tensors) {
  Packet packet;
  packet.kind = ValueKind::kTensors;
  for (at::Tensor& tensor : tensors) packet.items.push_back({std::move(tensor), true});
  return packet;
}

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
