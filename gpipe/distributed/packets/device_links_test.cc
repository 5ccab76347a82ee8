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
#include "gpipe/distributed/packets/link_budget.h"
#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/distributed/packets/remote_transport.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
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

// Three processes, ranks 3, 5 and 7, that have one link. Each gives each other one two messages in
// each round, of sizes that tell rounds and members apart. Rank 3 has put both rounds on streams
// before rank 5 puts the first one, so no message of a round may wait for another one.
TEST(DeviceLinks, OfASetMoveRounds) {
  const std::vector<int64_t> ranks = {3, 5, 7};
  const std::string id = socket_links().new_id();
  std::vector<std::unique_ptr<DeviceLinks>> all;
  for (int64_t member = 0; member < 3; ++member) {
    all.push_back(std::make_unique<DeviceLinks>(socket_links(), device(member),
                                                [](const std::string& what) { FAIL() << what; }));
    all.back()->begin_set(ranks, {member, 3, /*is_one_way=*/false}, id);
    EXPECT_EQ(all.back()->size(), 1u);
  }
  until([&] {
    bool is_connected = true;
    for (const auto& links : all) is_connected = links->are_connected() && is_connected;
    return is_connected;
  });
  const auto value = [](int64_t round, int64_t from, int64_t to, int64_t k) {
    return 100 * round + 30 * from + 10 * to + k;
  };
  struct Room {
    at::Tensor bytes;
    int64_t value;
  };
  std::vector<Room> rooms;
  for (int64_t own = 0; own < 3; ++own) {
    for (int64_t round = 0; round < 2; ++round) {
      DeviceLinks::Messages sends;
      DeviceLinks::Messages receives;
      for (int64_t other = 0; other < 3; ++other) {
        if (other == own) continue;
        for (int64_t k = 0; k < 2; ++k) {
          const int64_t sent = value(round, own, other, k);
          const int64_t got = value(round, other, own, k);
          sends[{ranks[own], ranks[other]}].push_back(bytes_on(device(own), 1 + sent, sent));
          rooms.push_back({bytes_on(device(own), 1 + got, 255), got});
          receives[{ranks[other], ranks[own]}].push_back(rooms.back().bytes);
        }
      }
      all[own]->exchange(sends, receives);
    }
  }
  for (const Room& room : rooms) {
    EXPECT_THAT(on_host(room.bytes),
                EqualsBitwise(at::full({room.bytes.numel()}, room.value, at::kByte)));
  }
}

std::vector<LinkEnd> one_way(size_t count) { return std::vector<LinkEnd>(count); }

TEST(LinkBudget, ALinkMayTakeLessWhereThereAreMany) {
  LinkBudget budget(socket_links(), device(0));  // of 64 multiprocessors
  EXPECT_EQ(budget.add(one_way(3)), 4);
  EXPECT_EQ(budget.add({LinkEnd{1, 3, /*is_one_way=*/false}}), 4);
  EXPECT_EQ(budget.load().links, 4);
  EXPECT_EQ(budget.load().blocks, 16);  // a quarter
  EXPECT_EQ(budget.load().bytes, (3 * 4 + 4 * 4) << 20);
  EXPECT_EQ(budget.add(one_way(2)), 1);
  EXPECT_EQ(to_text(budget.load()),
            "6 links, which take at most 18 of 64 multiprocessors and 30 MiB of memory");
  EXPECT_EQ(LinkBudget(socket_links(), device(0)).add(one_way(5)), 2);
}

TEST(LinkBudget, MostOfADeviceIsNotForLinks) {
  LinkBudget budget(socket_links(), device(0));
  EXPECT_EQ(budget.add(one_way(32)), 1);
  EXPECT_EQ(budget.add(one_way(32)), 1);  // for another pipeline
  try {
    (void)budget.add(one_way(33));
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("33 links"), HasSubstr("33 of 64 multiprocessors"),
                                    HasSubstr("unset GPIPE_DEVICE_LINKS")));
  }
  EXPECT_EQ(budget.load().links, 64);
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

// Worker 0 sends a packet in each of its steps, and worker 1 receives one in each of its own.
Program one_in_each_step(int32_t steps) {
  Program program;
  program.workers.resize(2);
  program.slots = {0, steps};
  for (int32_t k = 0; k < steps; ++k) {
    Step step;
    step.action = {ActionKind::kForward, 0, k};
    step.sends = {{1, k, 1}};
    program.workers[0].push_back(step);
    step.action = {ActionKind::kForward, 1, k};
    step.sends.clear();
    step.receives = {k};
    program.workers[1].push_back(step);
  }
  return program;
}

// Device 1 is held, so the memory of what has been received is in use. Its worker may begin two
// steps more than the device has done, and then waits.
TEST_F(DeviceLinksTest, AWorkerIsNotFarAheadOfItsDevice) {
  constexpr int32_t kSteps = 6;
  const Program program = one_in_each_step(kSteps);
  MessagePlan sent_plan(program, {0, 1});
  MessagePlan received_plan(program, {0, 1});
  MemoryNetwork network;
  const std::unique_ptr<Group> sent_group = network.group(0);
  const std::unique_ptr<Group> received_group = network.group(1);
  RemoteTransportOptions options;
  options.links = sender_.get();
  RemoteTransport from(program, sent_plan, *sent_group, 0, nullptr, options);
  options.links = receiver_.get();
  options.most_ahead = {/*steps=*/1, /*bytes=*/100};
  RemoteTransport to(program, received_plan, *received_group, 1, nullptr, options);
  for (int32_t k = 0; k < kSteps; ++k) {
    std::vector<Packet> packets;
    packets.push_back(packet_of(at::full({50}, k, at::TensorOptions(device(0)))));
    from.send({{1, k, 1}}, packets);
  }
  std::shared_ptr<void> busy = testing::hold_stream(device(1));
  const int64_t waits = testing::fake::runtime().counters().host_waits;
  std::atomic<int32_t> received{0};
  std::thread worker([&] {
    for (int32_t k = 0; k < kSteps; ++k) {
      std::vector<Packet> got(1);
      EXPECT_TRUE(to.receive(1, {k}, got));
      internal::arrive(got[0], device(1));
      ++received;
    }
  });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  until([&] {
    return testing::fake::runtime().counters().host_waits > waits ||
           std::chrono::steady_clock::now() > limit;
  });
  EXPECT_EQ(received, 2);
  busy.reset();
  worker.join();
  EXPECT_EQ(received, kSteps);
  from.finish();
  to.finish();
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

// The gradients of all replicas go over one link.
TEST(LinkPools, ASetHasOneLink) {
  TwoRanks both;
  std::vector<std::string> said;
  const auto connect = [&](int64_t rank) {
    LinkPools::Others others = both.others(rank);
    if (rank == 0) others.say = [&](const std::string& text) { said.push_back(text); };
    LinkPools pools(socket_links(), others);
    for (int time = 0; time < 2; ++time) {
      EXPECT_EQ(pools.connect({0, 1}, {7, 8}, {DeviceLinks::kSet}, device(rank)).size(), 1u);
    }
    EXPECT_EQ(pools.connect({0, 1}, {8, 9}, {kEdge}, device(rank)).size(), 1u);
  };
  std::thread other(connect, 1);
  connect(0);
  other.join();
  EXPECT_THAT(said, ::testing::ElementsAre(
                        "between devices, rank 0 has most: 1 link, which takes at most 4 of 64 "
                        "multiprocessors and 8 MiB of memory",
                        "between devices, rank 0 has most: 2 links, which take at most 8 of 64 "
                        "multiprocessors and 12 MiB of memory"));
}

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
  std::unique_ptr<DeviceLink> connect(const std::string& id, const LinkEnd& end, c10::Device where,
                                      int64_t most_blocks) const override {
    auto link = socket_links().connect(id, end, where, most_blocks);
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
    void move(const std::vector<Message>&, const std::vector<Message>&,
              const c10::Stream&) override {
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
