// StagedTransport between devices of the fake accelerator and a transport of host memory.
#include "gpipe/internal/run/staged_transport.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/Device.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/packet_of.h"

namespace gpipe::internal {
namespace {

using testing::device;
using testing::EqualsBitwise;
using testing::on_host;
using testing::packet_of_one;

const c10::Device kHost(c10::kCPU);

// Takes packets at once, as another process would, and gives them back.
class Messages final : public Transport<Packet> {
 public:
  void send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) override {
    for (size_t k = 0; k < sends.size(); ++k) {
      sent_.push_back(std::move(packets[k]));
    }
  }
  bool receive(int32_t /*worker*/, const std::vector<int32_t>& slots,
               std::vector<Packet>& packets) override {
    if (cancelled_) return false;
    for (size_t k = 0; k < slots.size(); ++k) packets[k] = std::move(sent_.at(slots[k]));
    return true;
  }
  void cancel() noexcept override { cancelled_ = true; }

  std::vector<Packet>& sent() { return sent_; }

 private:
  std::vector<Packet> sent_;
  bool cancelled_ = false;
};

// Worker 0 is in this process, on device(0). Worker 1 is in another process.
class StagedTransportTest : public ::testing::Test {
 protected:
  Messages messages_;
  Transfers transfers_;
  StagedTransport transport_{messages_, {false, true}, device(0), transfers_};
};

TEST_F(StagedTransportTest, WhatIsHandedOnIsOnItsWay) {
  std::shared_ptr<void> busy = testing::hold_stream(device(0));
  const at::Tensor tensor = at::arange(6.0, at::TensorOptions(device(0)));
  Packet packet = packet_of_one(tensor.view({2, 3}).t());
  packet.kind = ValueKind::kTensors;
  packet.items.push_back({at::Tensor(), false, true, true, 7});
  std::vector<Packet> packets;
  packets.push_back(std::move(packet));
  transport_.send({{1, 0, 1}}, packets);
  Packet& sent = messages_.sent().at(0);
  EXPECT_FALSE(sent.ready.empty()) << "otherwise nothing would wait for the copy";
  busy.reset();
  arrive(sent, kHost);
  EXPECT_THAT(sent.items.at(0).tensor, EqualsBitwise(at::arange(6.0).view({2, 3}).t()));
  EXPECT_EQ(sent.kind, ValueKind::kTensors);
  EXPECT_TRUE(sent.items.at(0).needs_grad);
  EXPECT_EQ(sent.items[0].tensor.strides(), at::IntArrayRef({1, 3}));
  const Item& second = sent.items.at(1);
  EXPECT_FALSE(second.tensor.defined() || second.needs_grad);
  EXPECT_TRUE(second.read_only && second.shared);
  EXPECT_EQ(second.version, 7);
}

TEST_F(StagedTransportTest, WhatStaysHereStaysOnItsDevice) {
  const at::Tensor tensor = at::ones({2}, at::TensorOptions(device(0)));
  std::vector<Packet> packets;
  packets.push_back(packet_of_one(tensor));
  packets.push_back(packet_of_one(tensor));
  transport_.send({{0, 0, 0}, {1, 1, 1}}, packets);
  EXPECT_TRUE(messages_.sent().at(0).items.at(0).tensor.is_same(tensor));
  EXPECT_EQ(messages_.sent().at(1).items.at(0).tensor.device(), kHost);
  std::vector<Packet> got(1);
  ASSERT_TRUE(transport_.receive(0, {0}, got));
  EXPECT_TRUE(got[0].items.at(0).tensor.is_same(tensor));
  // The tensor may be changed in place now, because the stream waits for the copy that reads it.
  arrive(got[0], device(0));
  got[0].items[0].tensor.zero_();
  arrive(messages_.sent()[1], kHost);
  EXPECT_THAT(messages_.sent().at(1).items[0].tensor, EqualsBitwise(at::ones({2})));
}

TEST_F(StagedTransportTest, WhatArrivesComesToTheDevice) {
  std::vector<Packet> packets;
  packets.push_back(packet_of_one(at::full({3}, 4.0)));
  packets.push_back(Packet());
  messages_.send({{0, 0, 0}, {0, 1, 0}}, packets);
  std::vector<Packet> got(2);
  ASSERT_TRUE(transport_.receive(0, {0, 1}, got));
  EXPECT_FALSE(got[0].ready.empty()) << "otherwise no stream would wait for the copy";
  arrive(got[0], device(0));
  EXPECT_EQ(got[0].items.at(0).tensor.device(), device(0));
  EXPECT_TRUE(got[0].items[0].needs_grad);
  EXPECT_THAT(on_host(got[0].items[0].tensor), EqualsBitwise(at::full({3}, 4.0)));
  EXPECT_TRUE(got[1].items.empty());
}

TEST_F(StagedTransportTest, Cancel) {
  transport_.cancel();
  std::vector<Packet> got(1);
  EXPECT_FALSE(transport_.receive(0, {0}, got));
}

}  // namespace
}  // namespace gpipe::internal
