// Tests which work copies wait for, and which work waits for copies, on the fake accelerator: which
// simulates how long each work takes, and shows when it ran.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/gate.h"
#include "gpipe/testing/packet_of.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe::internal {
namespace {

using testing::device;
using testing::EqualsBitwise;
using testing::on_host;
using testing::packet_of;
using testing::fake::Durations;
using testing::fake::Gate;
using testing::fake::runtime;
using testing::fake::Span;
using testing::fake::StreamId;
using testing::fake::Task;

class TransferOverlap : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime().drain();
    runtime().set_tracing(true);
    runtime().take_spans();
  }
  void TearDown() override {
    runtime().set_durations({});
    runtime().set_tracing(false);
  }
  static void copies_take(int64_t milliseconds) {
    Durations durations;
    durations.copy = std::chrono::milliseconds(milliseconds);
    runtime().set_durations(durations);
  }
  // The stream on which `transfers` makes copies from the device `from` to the device `to`.
  static StreamId stream_of_copies(Transfers& transfers, c10::Device from, c10::Device to) {
    copies();
    Packet packet = packet_of({torch::ones({8}, from)});
    transfers.depart(packet, to);
    arrive(packet, to);
    const std::vector<Span> spans = copies();
    if (spans.size() != 1) throw std::runtime_error("a packet took several copies, or none");
    return spans[0].stream;
  }
  static std::vector<Span> copies() {
    std::vector<Span> spans = runtime().take_spans();
    spans.erase(std::remove_if(spans.begin(), spans.end(),
                               [](const Span& span) { return span.kind != Task::Kind::kCopy; }),
                spans.end());
    return spans;
  }
};

TEST_F(TransferOverlap, NeitherSidesComputingWaitsForACopyBetweenDevices) {
  const at::Tensor tensor = torch::ones({8}, device(0));
  Transfers transfers;
  const StreamId copying = stream_of_copies(transfers, device(0), device(1));
  const testing::Watchdog watchdog(std::chrono::minutes(2), "computing beside a copy");
  Gate gate;
  runtime().launch(copying, gate.task());
  Packet packet = packet_of({tensor});
  transfers.depart(packet, device(1));
  const at::Tensor here = tensor + 1;
  const at::Tensor there = torch::ones({8}, device(1)) + 1;
  const c10::impl::VirtualGuardImpl impl(device().type());
  impl.synchronizeStream(current_stream(device(0)));
  impl.synchronizeStream(current_stream(device(1)));
  EXPECT_FALSE(packet.ready.at(0)->query()) << "on another stream than the copy before it";
  gate.open();
  arrive(packet, device(1));
  EXPECT_THAT(on_host(packet.items[0].tensor), EqualsBitwise(torch::ones({8})));
}

// On CUDA, making a device current makes a context, which takes some hundred MiB of the device. So
// a scope that ends must not make the thread's former device, 3, current.
TEST_F(TransferOverlap, AScopeThatEndsMakesNoDeviceCurrentThatNobodyAskedFor) {
  ASSERT_FALSE(testing::fake::was_made_current(3));
  std::thread([] {
    const c10::impl::VirtualGuardImpl impl(device().type());
    impl.uncheckedSetDevice(device(3));  // device 3 is now what device 0 is for a new thread
    {
      const StreamScope scope(current_stream(device(1)));
      EXPECT_EQ(impl.getDevice(), device(1));
    }
    EXPECT_EQ(impl.getDevice(), device(3));
  }).join();
  EXPECT_FALSE(testing::fake::was_made_current(3));
  EXPECT_TRUE(testing::fake::was_made_current(1));
}

TEST_F(TransferOverlap, EventsMakeNoDeviceCurrentThatNobodyAskedFor) {
  ASSERT_FALSE(testing::fake::was_made_current(3));
  std::thread([] {
    const c10::impl::VirtualGuardImpl impl(device().type());
    impl.uncheckedSetDevice(device(3));  // device 3 is now what device 0 is for a new thread
    Transfers transfers;
    Packet packet = packet_of({torch::ones({8}, device(0))});
    transfers.depart(packet, device(1));
    arrive(packet, device(1));
    transfers.let_follow(current_stream(device(0)));
    packet = Packet();  // destroys the events
    EXPECT_EQ(impl.getDevice(), device(3));
  }).join();
  EXPECT_FALSE(testing::fake::was_made_current(3));
}

TEST_F(TransferOverlap, WithoutStreamsOfTheirOwnCopiesAreWhereOneComputes) {
  Transfers transfers(/*own_streams=*/false);
  const StreamId copying = stream_of_copies(transfers, device(0), device(1));
  const at::Tensor tensor = torch::ones({8}, device(0)) + 1;
  const auto computing = [&](c10::Device on) {
    runtime().take_spans();
    const at::Tensor sum = torch::ones({8}, on) + 1;
    return runtime().take_spans().back().stream;
  };
  EXPECT_EQ(copying, computing(device(0)));
  Packet packet = packet_of({tensor});
  transfers.depart(packet, device(1));
  arrive(packet, device(1));
  EXPECT_THAT(on_host(packet.items[0].tensor), EqualsBitwise(torch::full({8}, 2.0)));
}

TEST_F(TransferOverlap, EachPairOfDevicesKeepsItsStream) {
  Transfers transfers;
  const at::Tensor tensor = torch::ones({8}, device(0));
  for (int round = 0; round < 5; ++round) {
    Packet packet = packet_of({tensor, tensor + 1});
    transfers.depart(packet, device(1));
    arrive(packet, device(1));
  }
  std::set<testing::fake::StreamId> streams;
  for (const Span& span : copies()) streams.insert(span.stream);
  EXPECT_EQ(streams.size(), 1u);
}

TEST_F(TransferOverlap, APacketOfTensorsFromSeveralDevicesIsWaitedForAsAWhole) {
  for (const bool host_first : {false, true}) {
    Transfers transfers;
    copies_take(20);
    std::vector<at::Tensor> tensors = {torch::full({8}, 1.0), torch::full({8}, 2.0, device(0)),
                                       torch::full({8}, 3.0, device(1))};
    if (!host_first) std::reverse(tensors.begin(), tensors.end());
    Packet packet = packet_of(tensors);
    transfers.depart(packet, device(1));
    EXPECT_EQ(packet.ready.size(), 3u);
    arrive(packet, device(1));
    for (size_t k = 0; k < tensors.size(); ++k) {
      EXPECT_THAT(on_host(packet.items[k].tensor + 0), EqualsBitwise(on_host(tensors[k])));
    }
  }
}

TEST_F(TransferOverlap, PinnedMemoryOfTheCallersMayBeChangedWhileItsCopyIsUnderWay) {
  const at::Tensor mine = torch::ones({8}).pin_memory();
  ASSERT_TRUE(mine.is_pinned());
  copies_take(50);
  Transfers transfers;
  Packet packet = packet_of({mine});
  transfers.depart(packet, device());
  mine.fill_(7);
  arrive(packet, device());
  EXPECT_THAT(on_host(packet.items[0].tensor), EqualsBitwise(torch::ones({8})));
}

TEST_F(TransferOverlap, WhatFollowsOnTheSourcesStreamMayChangeItsMemory) {
  copies_take(50);
  for (const c10::Device target : {device(1), c10::Device(c10::kCPU)}) {
    Transfers transfers;
    const at::Tensor tensor = torch::ones({8}, device(0));
    Packet packet = packet_of({tensor});
    transfers.depart(packet, target);
    transfers.let_follow(current_stream(device(0)));
    tensor.fill_(7);
    arrive(packet, target);
    EXPECT_THAT(on_host(packet.items[0].tensor), EqualsBitwise(torch::ones({8})));
  }
}

// One packet is copied to another device, and one stays on its device. Computing waits for the copy
// only if both packets have the same memory, because computing then changes what the copy reads.
TEST_F(TransferOverlap, OnlyMemoryThatIsCopiedAndStaysMakesComputingWait) {
  for (const bool shared : {false, true}) {
    const at::Tensor copied = torch::ones({8}, device(0));
    const at::Tensor staying = shared ? copied : torch::ones({8}, device(0));
    Transfers transfers;
    const StreamId copying = stream_of_copies(transfers, device(0), device(1));
    const testing::Watchdog watchdog(std::chrono::minutes(2), "computing beside a copy");
    Gate gate;
    runtime().launch(copying, gate.task());
    std::vector<Packet> packets = {packet_of({copied}), packet_of({staying})};
    transfers.depart_together(packets, {device(1), device(0)});
    const at::Tensor here = staying.add_(1);
    const c10::impl::VirtualGuardImpl impl(device().type());
    if (!shared) impl.synchronizeStream(current_stream(device(0)));
    EXPECT_FALSE(packets[0].ready.at(0)->query()) << "on another stream than the copy before it";
    gate.open();  // the values are wrong now if computing has not waited
    arrive(packets[0], device(1));
    EXPECT_THAT(on_host(packets[0].items[0].tensor), EqualsBitwise(torch::ones({8})));
  }
}

}  // namespace
}  // namespace gpipe::internal
