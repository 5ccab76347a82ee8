// DeviceLinks, and packets over them, between devices of the fake accelerator, whose race detector
// sees each access; both ends are in this process.
#include "gpipe/distributed/packets/device_links.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/packets/connect_links.h"
#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/distributed/packets/remote_transport.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/processes/memory_group.h"
#include "gpipe/testing/processes/socket_link.h"

namespace gpipe::distributed {
namespace {

using internal::Item;
using internal::Packet;
using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::device;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::on_host;

constexpr Edge kEdge{0, 1};

void until(const std::function<bool()>& is_so) {
  while (!is_so()) std::this_thread::sleep_for(milliseconds(1));
}

at::Tensor bytes_on(c10::Device device, int64_t count, int64_t value) {
  return at::full({count}, value, at::TensorOptions(device).dtype(at::kByte));
}

// Rank 0 is on device(0), rank 1 on device(1).
class DeviceLinksTest : public ::testing::Test {
 protected:
  DeviceLinksTest() {
    const std::string id = socket_links().new_id();
    sender_->begin(kEdge, DeviceLink::End::kSends, id);
    receiver_->begin(kEdge, DeviceLink::End::kReceives, id);
    until([&] {
      // Connecting goes on only if are_connected() is called again and again at both ends.
      const bool one = sender_->are_connected();
      return receiver_->are_connected() && one;
    });
  }

  at::Tensor receive(int64_t count) {
    const c10::Stream stream = receiver_->receiving_stream(kEdge);
    const internal::StreamScope scope(stream);
    at::Tensor room = at::empty({count}, at::TensorOptions(device(1)).dtype(at::kByte));
    receiver_->receive(kEdge, {room});
    return room;
  }

  std::atomic<int> errors_{0};
  std::unique_ptr<DeviceLinks> sender_ = std::make_unique<DeviceLinks>(
      socket_links(), device(0), [&](const std::string&) { ++errors_; });
  std::unique_ptr<DeviceLinks> receiver_ = std::make_unique<DeviceLinks>(
      socket_links(), device(1), [&](const std::string&) { ++errors_; });
};

TEST_F(DeviceLinksTest, NoThreadWaits) {
  auto busy = testing::hold_stream(device(0));
  at::Tensor sent = bytes_on(device(0), 1000, 3);  // filled when the stream is free again
  sender_->send(kEdge, {sent});
  sent.reset();
  // If the link did not keep the memory of `sent`, this tensor would get that memory.
  at::Tensor other = bytes_on(device(0), 1000, 9);
  const at::Tensor room = receive(1000);
  receiver_->let_follow(internal::current_stream(device(1)));
  internal::use_on(room, internal::current_stream(device(1)));
  const at::Tensor doubled = room.mul(2);
  busy.reset();
  EXPECT_THAT(on_host(doubled), EqualsBitwise(at::full({1000}, 6, at::kByte)));
}

TEST_F(DeviceLinksTest, InOrderAndTogether) {
  sender_->send(kEdge, {bytes_on(device(0), 5, 1), bytes_on(device(0), 0, 0)});
  sender_->send(kEdge, {bytes_on(device(0), 0, 0)});  // an empty tensor is not a message
  sender_->send(kEdge, {bytes_on(device(0), 7, 2)});
  const at::Tensor first = receive(5);
  const at::Tensor none = receive(0);
  const at::Tensor second = receive(7);
  receiver_->let_follow(internal::current_stream(device(1)));
  EXPECT_THAT(on_host(first), EqualsBitwise(at::full({5}, 1, at::kByte)));
  EXPECT_THAT(on_host(second), EqualsBitwise(at::full({7}, 2, at::kByte)));
}

// After let_follow() later work on the stream waits for the sends. So it may change the tensor, and
// the old values arrive.
TEST_F(DeviceLinksTest, LetsFollowWhatWasSent) {
  const at::Tensor sent = bytes_on(device(0), 100, 5);
  sender_->send(kEdge, {sent});
  sender_->let_follow(internal::current_stream(device(0)));
  sent.zero_();
  const at::Tensor room = receive(100);
  receiver_->let_follow(internal::current_stream(device(1)));
  EXPECT_THAT(on_host(room), EqualsBitwise(at::full({100}, 5, at::kByte)));
}

// A receive to which nothing is sent delays all work that waits for it. abort() ends that, and does
// not wait itself.
TEST_F(DeviceLinksTest, AbortEndsWhatWaits) {
  const at::Tensor room = receive(100);
  receiver_->let_follow(internal::current_stream(device(1)));
  const auto begin = std::chrono::steady_clock::now();
  receiver_->abort();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(50))
      << "abort() waited for the receive";
  (void)on_host(bytes_on(device(1), 1, 0));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(900));
  sender_->abort();
  sender_->send(kEdge, {bytes_on(device(0), 1, 0)});
  EXPECT_EQ(receive(1).numel(), 1);
  EXPECT_EQ(errors_, 0) << "abort() reports no error";
}

TEST_F(DeviceLinksTest, TellsOnceThatALinkBroke) {
  sender_->send(kEdge, {bytes_on(device(0), 10, 0)});
  (void)receive(11);
  until([&] { return errors_ >= 2; });
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(errors_, 2);
  EXPECT_THROW(sender_->send(kEdge, {bytes_on(device(0), 1, 0)}), std::runtime_error);
  sender_->abort();
  receiver_->abort();
}

TEST_F(DeviceLinksTest, AnEdgeThatIsNotConnected) {
  EXPECT_FALSE(sender_->has(Edge{1, 0}, DeviceLink::End::kReceives));
  EXPECT_TRUE(sender_->has(kEdge, DeviceLink::End::kSends));
  EXPECT_THROW(sender_->send(Edge{1, 0}, {bytes_on(device(0), 1, 0)}), std::logic_error);
}

// Worker 0 sends a small packet and then another one. Worker 1 asks for the later packet first.
Program two_in_another_order() {
  Program program;
  program.workers.resize(2);
  program.slots = {0, 2};
  Step first;
  first.action = {ActionKind::kForward, 0, 0};
  first.sends = {{1, 0, 1}, {1, 1, 1}};
  program.workers[0] = {first};
  Step second;
  second.action = {ActionKind::kForward, 1, 0};
  second.receives = {1, 0};
  program.workers[1] = {second};
  return program;
}

Packet packet_of(const at::Tensor& tensor) {
  Packet packet;
  Item item;
  item.tensor = tensor;
  packet.items.push_back(item);
  return packet;
}

// Ranks 0 and 1 with a worker each, on device(0) and device(1).
class PacketsByLink : public DeviceLinksTest {
 protected:
  PacketsByLink() {
    RemoteTransportOptions options;
    options.links = sender_.get();
    from_ =
        std::make_unique<RemoteTransport>(program_, sent_plan_, *sent_group_, 0, nullptr, options);
    options.links = receiver_.get();
    to_ = std::make_unique<RemoteTransport>(program_, received_plan_, *received_group_, 1, nullptr,
                                            options);
  }

  // The packets that worker 1 receives, in the order in which it asks for them.
  std::vector<at::Tensor> moved(const at::Tensor& first, const at::Tensor& second) {
    std::vector<Packet> packets;
    packets.push_back(packet_of(first));
    packets.push_back(packet_of(second));
    from_->send({{1, 0, 1}, {1, 1, 1}}, packets);
    packets.clear();
    std::vector<Packet> got(2);
    EXPECT_TRUE(to_->receive(1, {1, 0}, got));
    std::vector<at::Tensor> tensors;
    for (Packet& packet : got) {
      EXPECT_FALSE(packet.ready.empty());
      internal::arrive(packet, device(1));
      tensors.push_back(packet.items.at(0).tensor);
    }
    from_->finish();
    to_->finish();
    return tensors;
  }

  const Program program_ = two_in_another_order();
  MessagePlan sent_plan_{program_, {0, 1}};
  MessagePlan received_plan_{program_, {0, 1}};
  MemoryNetwork network_;
  std::unique_ptr<Group> sent_group_ = network_.group(0);
  std::unique_ptr<Group> received_group_ = network_.group(1);
  std::unique_ptr<RemoteTransport> from_;
  std::unique_ptr<RemoteTransport> to_;
};

TEST_F(PacketsByLink, AreReceivedInTheSendersOrder) {
  const at::TensorOptions there(device(0));
  const std::vector<at::Tensor> got = moved(at::arange(3.0, there), at::arange(50.0, there));
  EXPECT_EQ(got[0].device(), device(1));
  EXPECT_THAT(on_host(got[0]), EqualsBitwise(at::arange(50.0)));
  EXPECT_THAT(on_host(got[1]), EqualsBitwise(at::arange(3.0)));
}

// Tensors that arrive over a link have the strides, the place within a line of memory, the repeated
// elements and the gaps that they had, as with messages between hosts.
TEST_F(PacketsByLink, KeepHowTheyLieInMemory) {
  const at::TensorOptions there(device(0));
  const at::Tensor shifted = at::arange(101.0, there).slice(0, 1).view({10, 10}).t();
  const at::Tensor column = at::arange(1000.0, there).view({10, 100}).select(1, 3);
  const std::vector<at::Tensor> got = moved(shifted, column.unsqueeze(1).expand({10, 4}));
  const auto place = [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 256;
  };
  EXPECT_EQ(got[1].strides(), shifted.strides());
  EXPECT_EQ(place(got[1]), place(shifted));
  EXPECT_THAT(on_host(got[1]), EqualsBitwise(on_host(shifted)));
  EXPECT_EQ(got[0].strides(), at::IntArrayRef({100, 0}));
  EXPECT_THAT(on_host(got[0].contiguous()),
              EqualsBitwise(on_host(column).unsqueeze(1).expand({10, 4}).contiguous()));
}

TEST_F(PacketsByLink, OfOtherDevicesAreRefused) {
  std::vector<Packet> packets;
  packets.push_back(packet_of(at::ones({2})));
  packets.push_back(Packet());
  EXPECT_THROW(from_->send({{1, 0, 1}, {1, 1, 1}}, packets), c10::TypeError);
}

// A packet on its way from `here` to the host.
Packet to_host(c10::Device here, const at::Tensor& tensor) {
  Packet packet = packet_of(tensor);
  packet.ready.push_back(internal::record_event(internal::current_stream(here)));
  return packet;
}

// Worker 0 has a device, and its packets go by way of the host.
class PacketsByHost : public ::testing::Test {
 protected:
  // Sends a copy of `tensor`, and an empty packet.
  void send(const at::Tensor& tensor) {
    std::vector<Packet> packets;
    packets.push_back(to_host(device(0), tensor));
    packets.push_back(Packet());
    from_.send({{1, 0, 1}, {1, 1, 1}}, packets);
  }

  const Program program_ = two_in_another_order();
  MessagePlan sent_plan_{program_, {0, 1}};
  MessagePlan received_plan_{program_, {0, 1}};
  MemoryNetwork network_;
  std::unique_ptr<Group> sent_group_ = network_.group(0);
  std::unique_ptr<Group> received_group_ = network_.group(1);
  RemoteTransport from_{program_, sent_plan_, *sent_group_, 0, nullptr};
  RemoteTransport to_{program_, received_plan_, *received_group_, 1, nullptr};
};

TEST_F(PacketsByHost, AreSentWhenTheyHaveArrived) {
  std::shared_ptr<void> busy = testing::hold_stream(device(0));
  const at::Tensor pinned = at::zeros({3}, at::TensorOptions().pinned_memory(true));
  at::Tensor(pinned).copy_(at::arange(3.0, at::TensorOptions(device(0))), /*non_blocking=*/true);
  send(pinned);  // would wait forever if this thread waited
  busy.reset();
  std::vector<Packet> got(2);
  ASSERT_TRUE(to_.receive(1, {1, 0}, got));
  from_.finish();
  to_.finish();
  EXPECT_THAT(got[1].items.at(0).tensor, EqualsBitwise(at::arange(3.0)));
}

// The thread that waits for packets finds that one cannot be sent.
TEST_F(PacketsByHost, WhatSendingThrowsIsThrownByAWorker) {
  send(at::ones({2}, at::TensorOptions(device(0))));
  std::vector<Packet> got;
  const auto is_stopped = [&] {
    try {
      return !from_.receive(0, {}, got);
    } catch (const c10::TypeError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("it is not on the CPU"));
      return true;
    }
  };
  until(is_stopped);
  EXPECT_THROW(from_.finish(), std::runtime_error);
}

TEST_F(PacketsByHost, WhatSendingThrowsLastIsThrownAtTheEnd) {
  send(at::ones({2}, at::TensorOptions(device(0))));
  EXPECT_THROW(from_.finish(), c10::TypeError);
}

// The stage's thread may be in another layer by now, so which one it is in says nothing.
TEST_F(PacketsByHost, WhatSendingThrowsIsToldWithoutALayer) {
  Control control(ControlOptions{});
  RemoteTransportOptions options;
  bool asked = false;
  options.current_layer = [&](int64_t) { return asked = true, std::string("a layer"); };
  RemoteTransport from(program_, sent_plan_, *sent_group_, 0, &control, options);
  std::vector<Packet> packets;
  packets.push_back(to_host(device(0), at::ones({2}, at::TensorOptions(device(0)))));
  packets.push_back(Packet());
  std::vector<Packet> none;
  EXPECT_TRUE(from.receive(0, {}, none));
  from.send({{1, 0, 1}, {1, 1, 1}}, packets);
  EXPECT_THROW(from.finish(), c10::TypeError);
  EXPECT_TRUE(control.failed());
  EXPECT_FALSE(asked);
}

// How a LinkPools reaches another process that says `said` in each exchange.
LinkPools::Others with_other(const std::string& said) {
  LinkPools::Others others;
  others.exchange = [said](const std::string&, const std::string& value,
                           const std::vector<int64_t>&) {
    return std::vector<std::string>{value, said};
  };
  others.check = [] {};
  others.fail = [](const std::string& what) { throw std::runtime_error(what); };
  return others;
}

TEST(LinkPools, TwoProcessesOnOneDevice) {
  LinkPools pools(socket_links(), with_other(socket_links().identity(device(2))));
  const Program program = two_in_another_order();
  try {
    pools.connect(MessagePlan(program, {0, 1}), device(2));
    FAIL() << "it connected";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("ranks 0 and 1 are on the same device"),
                      HasSubstr("GPIPE_DEVICE_LINKS=sockets"), HasSubstr("its own device")));
  }
}

// Two processes that exchange values.
class TwoRanks {
 public:
  LinkPools::Others others(int64_t rank) {
    LinkPools::Others others;
    others.rank = rank;
    others.exchange = [this, rank](const std::string& name, const std::string& value,
                                   const std::vector<int64_t>&) {
      std::unique_lock<std::mutex> lock(mutex_);
      said_[name][rank] = value;
      changed_.notify_all();
      changed_.wait(lock, [&] { return said_[name].size() == 2; });
      return std::vector<std::string>{said_[name][0], said_[name][1]};
    };
    others.check = [] {};
    others.fail = [](const std::string& what) { throw std::runtime_error(what); };
    return others;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::map<int64_t, std::string>> said_;
};

// A tied weight goes over the link that a run needs anyway.
TEST(LinkPools, WhatIsSentOutsideOfARunHasTheLinksOfTheRun) {
  TwoRanks both;
  const Program program = two_in_another_order();
  const auto connect = [&](int64_t rank) {
    LinkPools pools(socket_links(), both.others(rank));
    const auto number = [](int64_t of) {
      return device_number(socket_links().identity(device(of)));
    };
    const std::vector<int64_t> devices = {number(0), number(1)};
    DeviceLinks& outside = pools.connect({0, 1}, devices, {kEdge}, device(rank));
    EXPECT_EQ(outside.size(), 1u);
    EXPECT_EQ(&pools.connect(MessagePlan(program, {0, 1}), device(rank)), &outside);
    EXPECT_EQ(outside.size(), 1u);
    (void)pools.connect({0, 1}, devices, {kEdge, Edge{1, 0}}, device(rank));
    EXPECT_EQ(outside.size(), 2u);
  };
  std::thread other(connect, 1);
  connect(0);
  other.join();
}

TEST(LinkKinds, AreKnownByName) {
  EXPECT_EQ(&link_kind("sockets"), &socket_links());
  EXPECT_EQ(link_kind("nccl").device_type(), c10::kCUDA);
  try {
    (void)link_kind("infiniband");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'infiniband'"), HasSubstr("host"), HasSubstr(", nccl, sockets")));
  }
}

// Links of sockets, but link number `number` is like a link of NCCL whose operation is in progress:
// the thread that sends or receives holds the link's lock until the link is aborted.
class OneIsInProgress final : public LinkKind {
 public:
  explicit OneIsInProgress(int64_t number) : number_(number) {}
  std::string name() const override { return "one in progress"; }
  c10::DeviceType device_type() const override { return socket_links().device_type(); }
  void check_available() const override {}
  std::string identity(c10::Device where) const override { return where.str(); }
  std::string new_id() const override { return socket_links().new_id(); }
  std::unique_ptr<DeviceLink> connect(const std::string& id, DeviceLink::End end,
                                      c10::Device where) const override {
    auto link = socket_links().connect(id, end, where);
    if (count_++ != number_) return link;
    return std::make_unique<Link>(std::move(link), is_in_progress_);
  }
  bool is_in_progress() const { return is_in_progress_; }

 private:
  class Link final : public DeviceLink {
   public:
    Link(std::unique_ptr<DeviceLink> link, std::atomic<bool>& is_in_progress)
        : link_(std::move(link)), is_in_progress_(is_in_progress) {}
    bool is_connected() override { return link_->is_connected(); }
    void send(const std::vector<at::Tensor>& /*messages*/, const c10::Stream&) override { wait(); }
    void receive(const std::vector<at::Tensor>& /*messages*/, const c10::Stream&) override {
      wait();
    }
    void check() override { const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock); }
    void abort() noexcept override {
      is_aborted_ = true;
      const std::lock_guard<std::mutex> lock(mutex_);
      link_->abort();
    }

   private:
    void wait() {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_in_progress_ = true;
      until([&] { return is_aborted_.load(); });
      is_in_progress_ = false;
      throw std::runtime_error("it was aborted");
    }

    const std::unique_ptr<DeviceLink> link_;
    std::atomic<bool>& is_in_progress_;
    std::atomic<bool> is_aborted_{false};
    std::mutex mutex_;
  };

  const int64_t number_;
  mutable int64_t count_ = 0;
  mutable std::atomic<bool> is_in_progress_{false};
};

TEST(DeviceLinks, AreAbortedWhileASendIsInProgress) {
  const OneIsInProgress kind(0);
  DeviceLinks links(kind, device(0), [](const std::string&) {});
  links.begin(kEdge, DeviceLink::End::kSends, kind.new_id());
  const at::Tensor bytes = bytes_on(device(0), 4, 1);
  std::thread sender([&] { links.send(kEdge, {bytes}); });
  until([&] { return kind.is_in_progress(); });
  // This is long enough for the watcher, which checks ten times a second.
  std::this_thread::sleep_for(milliseconds(250));
  links.abort();
  sender.join();
  EXPECT_FALSE(kind.is_in_progress());
}

// Each send waits for the stage's stream, and that stream waits for all receives, whose other ends
// never send. The stage's next receive is in progress. So the links end only if all of them are
// aborted at once, and not one after another.
TEST(DeviceLinks, AreAbortedWhereTheyWaitForEachOther) {
  constexpr int32_t kLanes = 4;
  const auto out = [](int32_t lane) { return Edge{0, 1, lane}; };
  const auto in = [](int32_t lane) { return Edge{1, 0, lane}; };
  const OneIsInProgress kind(2 * kLanes - 1);  // the link that begins last, which receives
  auto here = std::make_unique<DeviceLinks>(kind, device(0), [](const std::string&) {});
  auto there = std::make_unique<DeviceLinks>(socket_links(), device(1), [](const std::string&) {});
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    const std::string there_id = kind.new_id();
    here->begin(out(lane), DeviceLink::End::kSends, there_id);
    there->begin(out(lane), DeviceLink::End::kReceives, there_id);
    const std::string here_id = kind.new_id();
    here->begin(in(lane), DeviceLink::End::kReceives, here_id);
    there->begin(in(lane), DeviceLink::End::kSends, here_id);
  }
  until([&] {
    const bool one = here->are_connected();
    return there->are_connected() && one;
  });
  const auto receive = [&](int32_t lane) {
    const internal::StreamScope scope(here->receiving_stream(in(lane)));
    here->receive(in(lane), {bytes_on(device(0), 100, 0)});
  };
  for (int32_t lane = 0; lane < kLanes - 1; ++lane) receive(lane);
  here->let_follow(internal::current_stream(device(0)));
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    here->send(out(lane), {bytes_on(device(0), 100, 1)});
  }
  std::thread receiver([&] { receive(kLanes - 1); });
  until([&] { return kind.is_in_progress(); });

  std::atomic<bool> is_over{false};
  std::thread ends([&] {
    here->abort();
    here.reset();  // waits for the aborts
    is_over = true;
  });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  until([&] { return is_over || std::chrono::steady_clock::now() > limit; });
  ASSERT_TRUE(is_over) << "an abort waits for a link that is not aborted";
  ends.join();
  receiver.join();
  EXPECT_FALSE(kind.is_in_progress());
  (void)on_host(bytes_on(device(0), 1, 0));
  there->abort();
}

}  // namespace
}  // namespace gpipe::distributed
