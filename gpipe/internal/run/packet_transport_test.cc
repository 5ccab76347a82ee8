// PacketTransport between the CPU and devices of the fake accelerator.
#include "gpipe/internal/run/packet_transport.h"

#include <c10/core/Device.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/packet_of.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe::internal {
namespace {

using testing::device;
using testing::EqualsBitwise;
using testing::on_host;
using testing::packet_of_one;
using testing::fake::runtime;
using testing::fake::Span;
using testing::fake::Task;

// Two workers. Stages 0 and 1 belong to worker 0, on the CPU and on device(0); stages 2 and 3
// belong to worker 1, on device(1) and on the CPU.
class PacketTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime().drain();
    runtime().set_tracing(true);
    runtime().take_spans();
  }
  void TearDown() override { runtime().set_tracing(false); }

  std::vector<Packet> received(int32_t worker, const std::vector<int32_t>& slots) {
    std::vector<Packet> packets(slots.size());
    EXPECT_TRUE(transport_.receive(worker, slots, packets));
    return packets;
  }
  // The number of copies since the last call of this function.
  static int copies() {
    int count = 0;
    for (const Span& span : runtime().take_spans()) count += span.kind == Task::Kind::kCopy;
    return count;
  }

  const Program program_{{}, {2, 3}};  // the slots of each worker
  std::vector<c10::Device> devices_ = {c10::kCPU, device(0), device(1), c10::kCPU};
  Transfers transfers_;
  PacketTransport transport_{program_, devices_, transfers_};
};

TEST_F(PacketTransportTest, PacketsArriveWholeInTheirSlots) {
  const at::Tensor a = torch::ones({2});
  const at::Tensor b = torch::zeros({2});
  Packet first = packet_of_one(a);
  first.kind = ValueKind::kTensors;
  first.items.push_back({at::Tensor(), false, true, true, 7});
  std::vector<Packet> packets = {std::move(first), packet_of_one(b)};
  transport_.send({{1, 2, 3}, {1, 0, 3}}, packets);
  const std::vector<Packet> got = received(1, {0, 2});
  EXPECT_TRUE(got[0].items.at(0).tensor.is_same(b));
  EXPECT_EQ(got[0].kind, ValueKind::kTensor);
  EXPECT_TRUE(got[1].items.at(0).tensor.is_same(a));
  EXPECT_TRUE(got[1].items[0].needs_grad);
  EXPECT_EQ(got[1].kind, ValueKind::kTensors);
  const Item& second = got[1].items.at(1);
  EXPECT_FALSE(second.tensor.defined() || second.needs_grad);
  EXPECT_TRUE(second.read_only && second.shared);
  EXPECT_EQ(second.version, 7);
  EXPECT_TRUE(got[0].ready.empty() && got[1].ready.empty())
      << "nothing to wait for between stages on the CPU";
  EXPECT_EQ(a.use_count(), 2) << "the transport kept it";
}

TEST_F(PacketTransportTest, AWorkerSendsToItself) {
  const at::Tensor a = torch::ones({2});
  std::vector<Packet> packets = {packet_of_one(a)};
  transport_.send({{0, 1, 0}}, packets);
  EXPECT_TRUE(received(0, {1})[0].items.at(0).tensor.is_same(a));
}

TEST_F(PacketTransportTest, NothingToSendAndNothingToWaitFor) {
  std::vector<Packet> none;
  transport_.send({}, none);
  EXPECT_TRUE(transport_.receive(1, {}, none));
}

TEST_F(PacketTransportTest, TheCopyStartsWhenItIsSent) {
  std::vector<Packet> packets = {packet_of_one(torch::ones({2}, device(0)))};
  runtime().drain();
  (void)copies();
  transport_.send({{1, 0, 2}}, packets);
  runtime().drain();
  EXPECT_GE(copies(), 1) << "the copy starts before anybody receives it";
  std::vector<Packet> got = received(1, {0});
  runtime().drain();
  EXPECT_EQ(copies(), 0);
  EXPECT_FALSE(got[0].ready.empty());
  arrive(got[0], device(1));
  EXPECT_TRUE(got[0].ready.empty());
  EXPECT_EQ(got[0].items.at(0).tensor.device(), device(1));
  EXPECT_THAT(on_host(got[0].items[0].tensor), EqualsBitwise(torch::ones({2})));
}

// A packet goes to the device of the stage that takes it, because a worker may have stages on
// several devices.
TEST_F(PacketTransportTest, EachPacketGoesToTheDeviceOfItsStage) {
  const at::Tensor tensor = torch::arange(4.0);
  std::vector<Packet> packets = {packet_of_one(tensor), packet_of_one(tensor),
                                 packet_of_one(tensor), packet_of_one(tensor)};
  transport_.send({{0, 0, 1}, {0, 1, 0}, {1, 1, 3}, {1, 0, 2}}, packets);
  std::vector<Packet> first = received(0, {0, 1});
  std::vector<Packet> second = received(1, {0, 1});
  Packet* const of_stage[] = {&first[1], &first[0], &second[0], &second[1]};
  for (size_t stage = 0; stage < devices_.size(); ++stage) {
    Packet& packet = *of_stage[stage];
    arrive(packet, devices_[stage]);
    const at::Tensor& there = packet.items.at(0).tensor;
    EXPECT_EQ(there.device(), devices_[stage]) << stage;
    EXPECT_EQ(there.is_same(tensor), devices_[stage].is_cpu()) << stage;
    EXPECT_THAT(on_host(there), EqualsBitwise(tensor)) << stage;
  }
}

// Two packets have the same tensor. The packet that stays on the device may be changed in place, so
// its receiver waits for the copy of the other one.
TEST_F(PacketTransportTest, WhatLeavesTogetherWaitsForEachOthersCopies) {
  const at::Tensor tensor = torch::ones({2}, device(0));
  std::vector<Packet> packets = {packet_of_one(tensor), packet_of_one(tensor)};
  transport_.send({{0, 0, 1}, {1, 0, 2}}, packets);
  std::vector<Packet> stays = received(0, {0});
  EXPECT_TRUE(stays[0].items.at(0).tensor.is_same(tensor));
  EXPECT_FALSE(stays[0].ready.empty());
  arrive(stays[0], device(0));
  tensor.zero_();
  std::vector<Packet> left = received(1, {0});
  arrive(left[0], device(1));
  EXPECT_THAT(on_host(left[0].items.at(0).tensor), EqualsBitwise(torch::ones({2})));
}

TEST_F(PacketTransportTest, TheReceiverWaitsForAllItsSlots) {
  const testing::Watchdog watchdog(std::chrono::minutes(2), "waiting for two packets");
  std::vector<Packet> got(2);
  bool complete = false;
  std::thread receiver([&] { complete = transport_.receive(1, {0, 1}, got); });
  for (const int32_t slot : {1, 0}) {
    std::vector<Packet> packets = {packet_of_one(torch::full({1}, slot))};
    transport_.send({{1, slot, 3}}, packets);
  }
  receiver.join();
  ASSERT_TRUE(complete);
  for (int32_t slot : {0, 1}) {
    EXPECT_THAT(got[slot].items.at(0).tensor, EqualsBitwise(torch::full({1}, slot)));
  }
}

TEST_F(PacketTransportTest, CancelEndsTheWaitingAndAllThatComesAfter) {
  const testing::Watchdog watchdog(std::chrono::minutes(2), "waiting in a canceled run");
  std::vector<Packet> got(1);
  bool complete = true;
  std::thread receiver([&] { complete = transport_.receive(1, {0}, got); });
  transport_.cancel();
  receiver.join();
  EXPECT_FALSE(complete);
  std::vector<Packet> packets = {packet_of_one(torch::ones({1}))};
  transport_.send({{0, 0, 0}}, packets);
  EXPECT_FALSE(transport_.receive(0, {0}, got))
      << "a canceled run gives no packets, even if they have arrived";
  transport_.cancel();
  EXPECT_FALSE(transport_.receive(0, {0}, got));
}

}  // namespace
}  // namespace gpipe::internal
