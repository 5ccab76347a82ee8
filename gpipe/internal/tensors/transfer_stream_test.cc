// Tests the streams and events of packets between GPUs, and between a GPU and the host.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/packet_of.h"

namespace gpipe::internal {
namespace {

using c10::impl::VirtualGuardImpl;
using testing::device;
using testing::packet_of_one;
using testing::slow_work;

using TransferStream = testing::DeviceTest;

c10::Stream new_stream() {
  return VirtualGuardImpl(device().type()).getStreamFromGlobalPool(device());
}

c10::Stream default_stream() {
  return VirtualGuardImpl(device().type()).getDefaultStream(device());
}

TEST_F(TransferStream, ANewStreamIsNotTheDefaultOne) { EXPECT_NE(new_stream(), default_stream()); }

TEST_F(TransferStream, TheCurrentStreamIsLibTorchs) {
  EXPECT_EQ(current_stream(device()), VirtualGuardImpl(device().type()).getStream(device()));
  EXPECT_EQ(current_stream(device()), default_stream()) << "no other stream was made current";
}

TEST_F(TransferStream, AStreamScopeMakesItsStreamAndDeviceCurrent) {
  const c10::Device last = device(testing::gpu_count() - 1);
  VirtualGuardImpl impl(last.type());
  const c10::Stream stream = impl.getStreamFromGlobalPool(last);
  const c10::Device before = impl.getDevice();
  {
    StreamScope scope(stream);
    EXPECT_EQ(impl.getDevice(), last);
    EXPECT_EQ(current_stream(last), stream);
    EXPECT_EQ(stream.device(), last);
  }
  EXPECT_EQ(impl.getDevice(), before);
  EXPECT_EQ(current_stream(last), impl.getDefaultStream(last));
}

TEST_F(TransferStream, GraphsAreRecordedWhereNobodyElseIs) {
  const c10::Stream first = take_stream_for_recordings(device());
  EXPECT_NE(first, current_stream(device()));
  std::vector<c10::Stream> copies;
  for (int k = 0; k < 20; ++k) {
    copies.push_back(take_stream_for_copies(device()));
    EXPECT_NE(copies.back(), first);
  }
  // Streams for recordings differ from each other, so that work that one stage orders with its
  // recordings does not wait for a recording of another stage.
  std::vector<c10::Stream> recordings = {first};
  {
    const StreamScope scope(new_stream());
    for (int k = 0; k < 8; ++k) {
      const c10::Stream stream = take_stream_for_recordings(device());
      EXPECT_NE(stream, current_stream(device()));
      for (const c10::Stream& other : copies) EXPECT_NE(stream, other);
      for (const c10::Stream& other : recordings) EXPECT_NE(stream, other);
      recordings.push_back(stream);
    }
  }
  // If no stream is free, the function gives a stream of another recording, and never one of a
  // copy.
  for (int k = 0; k < 40; ++k) {
    recordings.push_back(take_stream_for_recordings(device()));
    for (const c10::Stream& other : copies) EXPECT_NE(recordings.back(), other);
  }
  for (const c10::Stream& stream : copies) give_back_stream_for_copies(stream);
  for (const c10::Stream& stream : recordings) give_back_stream_for_recordings(stream);
  // All streams are free again: a pool gives its 32 streams in turn.
  std::vector<c10::Stream> again;
  for (int k = 0; k < 32; ++k) {
    const c10::Stream stream = take_stream_for_recordings(device());
    for (const c10::Stream& other : again) EXPECT_NE(stream, other);
    again.push_back(stream);
  }
  for (const c10::Stream& stream : again) give_back_stream_for_recordings(stream);
}

// Replays keep the priority of the stream on which they were recorded. So that stream must be one
// of the pool's 32 streams of the usual priority, which the pool gives in turn.
TEST_F(TransferStream, ReplaysDoNotOvertakeWhatIsLaunchedKernelByKernel) {
  const c10::Stream recording = take_stream_for_recordings(device());
  bool is_usual = false;
  for (int k = 0; k < 32; ++k) is_usual = new_stream() == recording || is_usual;
  EXPECT_TRUE(is_usual);
  give_back_stream_for_recordings(recording);
}

TEST_F(TransferStream, AStreamWaitsForASlowOne) {
  const c10::Stream producer = new_stream();
  const c10::Stream consumer = new_stream();
  ASSERT_NE(producer, consumer);
  Packet packet;
  {
    StreamScope scope(producer);
    slow_work(device());
    packet = packet_of_one(torch::ones({100}, device()) * 2);
    Transfers().depart(packet, device());
  }
  StreamScope scope(consumer);
  arrive(packet, device());
  EXPECT_EQ(packet.items[0].tensor.sum().item<double>(), 200);
}

TEST_F(TransferStream, NeitherThreadNorStreamOfTheProducerWaitsForACopyToTheHost) {
  const auto leave = [] {
    Packet packet = packet_of_one(torch::ones({100}, device()));
    Transfers().depart(packet, c10::kCPU);
    return packet;
  };
  {
    // The first use of a kernel, and the first pinned memory, may wait for the device. So this
    // packet is not measured.
    Packet first = leave();
    arrive(first, c10::kCPU);
  }
  std::shared_ptr<void> busy = testing::hold_stream(device());
  Packet packet = leave();
  ASSERT_EQ(packet.ready.size(), 1U);
  EXPECT_FALSE(packet.ready[0]->query()) << "the copy still waits for the slow work";
  EXPECT_TRUE(packet.items[0].tensor.is_pinned());
  busy.reset();
  arrive(packet, c10::kCPU);
  EXPECT_EQ(packet.items[0].tensor.sum().item<double>(), 100);
}

// Expects that a block that a packet's consumer uses is not reused while the consumer's stream is
// busy, and is reused afterwards, even if the consumer has only a shifted view of it.
void expect_block_kept(bool shifted, c10::Stream producer, c10::Stream consumer) {
  constexpr int64_t kSize = 1 << 22;
  StreamScope scope(producer);
  void* block = nullptr;
  std::shared_ptr<void> busy;
  {
    at::Tensor tensor = torch::ones({kSize}, device());
    block = tensor.storage().mutable_data();
    Packet packet = packet_of_one(shifted ? tensor.slice(0, 1) : tensor);
    tensor = at::Tensor();
    Transfers().depart(packet, device());
    StreamScope consuming(consumer);
    arrive(packet, device());
    busy = testing::hold_stream(device());
  }
  const at::Tensor while_busy = torch::empty({kSize}, device());
  EXPECT_NE(while_busy.storage().data(), block);
  busy.reset();
  consumer.synchronize();
  // The allocator looks for finished events at its next allocation, so several attempts may be
  // needed.
  bool reused = false;
  std::vector<at::Tensor> held;
  for (int i = 0; i < 8 && !reused; ++i) {
    held.push_back(torch::empty({kSize}, device()));
    reused = held.back().storage().data() == block;
  }
  EXPECT_TRUE(reused);
}

TEST_F(TransferStream, ABlockIsNotReusedWhileTheConsumerIsBusy) {
  expect_block_kept(false, new_stream(), new_stream());
}

TEST_F(TransferStream, AShiftedViewKeepsTheWholeBlock) {
  expect_block_kept(true, new_stream(), new_stream());
}

// The owner of the target frees it on the stream on which it was made, while the copy into it still
// waits for another stream. The block must not be reused before the copy is done.
TEST_F(TransferStream, WhatIsCopiedIntoIsNotReusedBeforeTheCopy) {
  constexpr int64_t kSize = 1 << 22;
  const at::Tensor source = torch::ones({kSize});
  Transfers transfers;
  const c10::Stream making = new_stream();
  const StreamScope scope(making);
  at::Tensor target = torch::empty({kSize}, device());
  const void* const block = target.storage().data();
  // The first pinned memory may wait for the device, so it is made before the stream is held.
  transfers.copy_into(torch::empty({kSize}, device()), source);
  making.synchronize();
  std::shared_ptr<void> busy;
  {
    const StreamScope reading(new_stream());
    busy = testing::hold_stream(device());
    transfers.copy_into(target, source);
  }
  target = at::Tensor();
  const at::Tensor while_busy = torch::empty({kSize}, device());
  EXPECT_NE(while_busy.storage().data(), block);
}

}  // namespace
}  // namespace gpipe::internal
