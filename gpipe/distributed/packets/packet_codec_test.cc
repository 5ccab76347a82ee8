#include "gpipe/distributed/packets/packet_codec.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/runtime/bytes.h"
#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

using internal::DamagedMessage;
using internal::Item;
using internal::Packet;
using internal::ValueKind;
using internal::version_of;
using ::testing::SizeIs;

constexpr int64_t kLimit = 1 << 30;

Item item(const at::Tensor& tensor) {
  Item result;
  result.tensor = tensor;
  result.version = version_of(tensor);
  return result;
}
Packet packet_of(const std::vector<at::Tensor>& tensors) {
  Packet packet;
  packet.kind = ValueKind::kTensors;
  for (const at::Tensor& tensor : tensors) packet.items.push_back(item(tensor));
  return packet;
}

at::Tensor copy_of(const at::Tensor& bytes) { return bytes.clone(); }

// Decodes a packet as after a network: the receiver gets the bytes and nothing else.
Packet receive(const OutgoingPacket& sent, int64_t limit = kLimit) {
  // The receiver may have posted more memory than the head needs.
  IncomingPacket incoming(at::cat({sent.head, at::full({100}, 7, at::kByte)}), limit);
  EXPECT_EQ(incoming.head_bytes(), sent.head.numel());
  EXPECT_EQ(incoming.bodies().size(), sent.bodies.size());
  for (size_t i = 0; i < sent.bodies.size(); ++i) {
    EXPECT_EQ(incoming.bodies()[i].sizes(), sent.bodies[i].sizes());
    std::memcpy(incoming.bodies()[i].mutable_data_ptr(), sent.bodies[i].const_data_ptr(),
                sent.bodies[i].nbytes());
  }
  return incoming.take();
}

uintptr_t line_of(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64;
}

// The bits of all elements, in order.
std::string bits_of(const at::Tensor& tensor) {
  const at::Tensor elements = tensor.resolve_conj().resolve_neg().contiguous();
  return std::string(static_cast<const char*>(elements.const_data_ptr()), elements.nbytes());
}

// Expects that all is the same that the next stage can see of a tensor.
void expect_same(const at::Tensor& expected, const at::Tensor& actual) {
  ASSERT_EQ(actual.defined(), expected.defined());
  if (!expected.defined()) return;
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_EQ(actual.sizes(), expected.sizes());
  EXPECT_EQ(actual.strides(), expected.strides());
  EXPECT_EQ(actual.is_conj(), expected.is_conj());
  EXPECT_EQ(actual.is_neg(), expected.is_neg());
  if (expected.numel() > 0) {
    EXPECT_EQ(line_of(actual), line_of(expected));
  }
  EXPECT_EQ(bits_of(actual), bits_of(expected));
}

void expect_arrives(const std::vector<at::Tensor>& tensors) {
  for (const int64_t alone_from : {int64_t{1}, int64_t{256}, kAloneFrom}) {
    const Packet sent = packet_of(tensors);
    const Packet arrived = receive(encode(sent, alone_from));
    ASSERT_EQ(arrived.items.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      expect_same(tensors[i], arrived.items[i].tensor);
      EXPECT_EQ(arrived.items[i].version, version_of(arrived.items[i].tensor));
    }
  }
}

TEST(PacketCodec, TensorsOfAllTypesArrive) {
  for (const auto type :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kBFloat16, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble, at::kBool,
        at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kUInt16, at::kUInt32, at::kUInt64}) {
    const auto size = static_cast<int64_t>(c10::elementSize(type));
    expect_arrives({at::randint(0, 2, {6 * size}, at::kByte).view(type).view({2, 3})});
  }
}

TEST(PacketCodec, ShapesStridesAndPlacesArrive) {
  const at::Tensor base = at::randn({6, 8});
  expect_arrives({at::randn({}), at::randn({1}), at::randn({3, 1, 2})});
  expect_arrives({at::Tensor(), at::randn({2}), at::Tensor()});
  expect_arrives({at::empty({0}), at::empty({3, 0, 2}), at::empty({0}, at::kLong)});
  expect_arrives({base.t(), at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)});
  // The tensors have memory that begins within a line, and small and large gaps.
  expect_arrives({base.narrow(1, 3, 5), at::randn({100, 100}).narrow(1, 7, 2),
                  at::randn({64}).narrow(0, 5, 1), at::randn({4096}).slice(0, 3, 4000, 1000)});
  // The tensors have elements that repeat, with and without gaps.
  expect_arrives({at::randn({1, 4}).expand({1000, 4}), at::randn({1}).expand({7}),
                  at::randn({100, 100}).narrow(1, 7, 2).unsqueeze(1).expand({100, 9, 2}),
                  at::randn({10}).as_strided({4, 3}, {2, 1})});
  const at::Tensor complex = at::randn({3, 50}, at::kComplexFloat);
  expect_arrives({complex.conj(), complex.narrow(1, 2, 1).conj(), at::imag(complex.conj())});
  expect_arrives({});
}

TEST(PacketCodec, MarksAndKindsArrive) {
  for (const ValueKind kind : {ValueKind::kTensor, ValueKind::kTensors, ValueKind::kTuple2,
                               ValueKind::kTuple3, ValueKind::kTuple4}) {
    for (int marks = 0; marks < 8; ++marks) {
      Packet packet = packet_of({at::randn({2}), at::Tensor()});
      packet.kind = kind;
      packet.items[marks % 2].needs_grad = (marks & 1) != 0;
      packet.items[0].read_only = (marks & 2) != 0;
      packet.items[0].shared = (marks & 4) != 0;
      const Packet arrived = receive(encode(packet));
      EXPECT_EQ(arrived.kind, kind);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(arrived.items[i].needs_grad, packet.items[i].needs_grad);
        EXPECT_EQ(arrived.items[i].read_only, packet.items[i].read_only);
        EXPECT_EQ(arrived.items[i].shared, packet.items[i].shared);
      }
    }
  }
}

TEST(PacketCodec, OneTensorTwiceIsOneTensor) {
  const at::Tensor tensor = at::randn({4});
  const Packet arrived = receive(encode(packet_of({tensor, at::randn({4}), tensor})));
  EXPECT_TRUE(arrived.items[0].tensor.is_same(arrived.items[2].tensor));
  EXPECT_FALSE(arrived.items[0].tensor.is_same(arrived.items[1].tensor));
}

TEST(PacketCodec, TensorsThatShareMemoryStillDo) {
  for (const int64_t alone_from : {int64_t{1}, kAloneFrom}) {
    const at::Tensor base = at::randn({8, 8});
    const at::Tensor other = at::randn({8});
    const Packet arrived = receive(encode(
        packet_of({base, other, base.narrow(0, 2, 3), base.t(), base.view(at::kInt)}), alone_from));
    const auto& items = arrived.items;
    items[0].tensor[2][1].fill_(42);
    EXPECT_EQ(items[2].tensor[0][1].item<float>(), 42);
    EXPECT_EQ(items[3].tensor[1][2].item<float>(), 42);
    // A change of one tensor counts for all tensors that share its storage, and for no other
    // tensor.
    EXPECT_NE(version_of(items[2].tensor), items[2].version);
    EXPECT_EQ(version_of(items[1].tensor), items[1].version);
  }
}

TEST(PacketCodec, PartsOfOneMemoryTravelAlone) {
  const at::Tensor base = at::randn({1000, 1000});
  const std::vector<at::Tensor> chunks = base.chunk(2);
  const OutgoingPacket sent = encode(packet_of({chunks[0].narrow(0, 0, 2), chunks[1][0]}));
  EXPECT_LT(sent.head.numel(), 20000);
  const Packet arrived = receive(sent);
  expect_same(chunks[0].narrow(0, 0, 2), arrived.items[0].tensor);
  arrived.items[0].tensor.add_(1);
  EXPECT_NE(version_of(arrived.items[1].tensor), arrived.items[1].version);
}

TEST(PacketCodec, AChangeOnTheWayIsTold) {
  const at::Tensor small = at::randn({4});
  const at::Tensor large = at::randn({1 << 20});
  Packet packet = packet_of({small, large});
  small.add_(1);
  const OutgoingPacket sent = encode(packet);
  EXPECT_FALSE(sent.is_changed());
  const Packet arrived = receive(sent);
  EXPECT_NE(arrived.items[0].version, version_of(arrived.items[0].tensor));
  EXPECT_EQ(arrived.items[1].version, version_of(arrived.items[1].tensor));
  // The small tensor was copied into the head, so a change of it does not matter. The large one is
  // being sent, so a change of it is noticed.
  small.add_(1);
  EXPECT_FALSE(sent.is_changed());
  large.add_(1);
  EXPECT_TRUE(sent.is_changed());
}

TEST(PacketCodec, LargeTensorsAreNotCopied) {
  const at::Tensor large = at::randn({1 << 20});
  const OutgoingPacket sent = encode(packet_of({large, at::randn({3})}));
  ASSERT_THAT(sent.bodies, SizeIs(1));
  EXPECT_EQ(sent.bodies[0].const_data_ptr(), large.const_data_ptr());
  EXPECT_LT(sent.head.numel(), 512);
  IncomingPacket incoming(copy_of(sent.head), kLimit);
  const at::Tensor body = incoming.bodies().at(0);
  EXPECT_EQ(incoming.take().items[0].tensor.const_data_ptr(), body.const_data_ptr());
}

TEST(PacketCodec, RefusesWhatCannotTravel) {
  const auto refuse = [](const at::Tensor& tensor) {
    EXPECT_THROW(encode(packet_of({tensor})), c10::TypeError);
  };
  refuse(at::randn({2}).to_sparse());
  refuse(at::empty({2}, at::TensorOptions().device(at::kMeta)));
  refuse(at::quantize_per_tensor(at::randn({2}), 1, 0, at::kQInt8));
  refuse(at::_efficientzerotensor({2}, at::kFloat));
}

TEST(PacketCodec, AnnouncementsAreNotHeads) {
  EXPECT_EQ(announced_bytes(announce(5000), kLimit), 5000);
  EXPECT_EQ(announced_bytes(encode(packet_of({at::randn({3})})).head, kLimit), std::nullopt);
  EXPECT_THROW(announced_bytes(announce(5000), 4999), DamagedMessage);
  EXPECT_THROW(announced_bytes(announce(0), kLimit), DamagedMessage);
  EXPECT_THROW(announced_bytes(announce(-1), kLimit), DamagedMessage);
  EXPECT_THROW(announced_bytes(at::zeros({64}, at::kByte), kLimit), DamagedMessage);
  EXPECT_THROW(announced_bytes(at::zeros({2}, at::kByte), kLimit), DamagedMessage);
  EXPECT_THROW(IncomingPacket(announce(5000), kLimit), DamagedMessage);
}

TEST(PacketCodec, RefusesMoreMemoryThanTheLimit) {
  const OutgoingPacket large = encode(packet_of({at::randn({1 << 20})}));
  EXPECT_THROW(IncomingPacket(copy_of(large.head), (1 << 22) - 1), DamagedMessage);
  IncomingPacket(copy_of(large.head), 1 << 22);
  // A tensor with gaps (here 2 elements, 2^17 apart) is sent in a few bytes, but takes the memory
  // of the whole range where it arrives.
  const OutgoingPacket gaps =
      encode(packet_of({at::randn({1 << 18}).slice(0, 0, 1 << 18, 1 << 17)}));
  EXPECT_LT(gaps.head.numel(), 512);
  EXPECT_THROW(IncomingPacket(copy_of(gaps.head), 1 << 19), DamagedMessage);
}

// A head that is cut off, or whose bytes are changed at random, is refused or gives tensors within
// its memory, so that each element can be read (the sanitizers check that).
TEST(PacketCodec, DamagedHeadsAreRefused) {
  const at::Tensor base = at::randn({20, 20});
  std::vector<OutgoingPacket> packets;
  packets.push_back(
      encode(packet_of({at::randn({3, 4}), at::Tensor(), at::randn({2}, at::kDouble)})));
  packets.push_back(encode(packet_of({base.t(), base[3], base.narrow(1, 2, 1)})));
  packets.push_back(encode(packet_of({base.narrow(1, 2, 1), at::empty({0, 3})})));
  packets.push_back(
      encode(packet_of({base.clone(), at::randn({2}, at::kComplexFloat).conj()}), 64));
  auto random = testing::test_random();
  int refused = 0;
  int read = 0;
  for (const OutgoingPacket& sent : packets) {
    const at::Tensor& whole = sent.head;
    int64_t described = 0;
    std::memcpy(&described, static_cast<const char*>(whole.const_data_ptr()) + 8, 8);
    for (int64_t size = 0; size < whole.numel(); ++size) {
      EXPECT_THROW(IncomingPacket(whole.narrow(0, 0, size).clone(), kLimit), DamagedMessage)
          << size;
    }
    for (int round = 0; round < 10000; ++round) {
      at::Tensor changed = whole.clone();
      auto* bytes = static_cast<unsigned char*>(changed.mutable_data_ptr());
      for (uint64_t count = 1 + random() % 3; count > 0; --count) {
        const uint64_t position = random() % static_cast<uint64_t>(16 + described);
        // The new byte is a small number, a limit of a type, or random.
        const unsigned char drawn[] = {
            0, 1, 2, 4, 64, 127, 128, 255, static_cast<unsigned char>(random())};
        bytes[position] = drawn[random() % 9];
      }
      try {
        IncomingPacket incoming(changed, 1 << 20);
        for (const at::Tensor& body : incoming.bodies()) body.zero_();
        for (const Item& arrived : incoming.take().items) {
          if (arrived.tensor.defined() && arrived.tensor.numel() < 100000) {
            arrived.tensor.view_as(arrived.tensor).clone();
          }
        }
        ++read;
      } catch (const DamagedMessage&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_GT(read, 1000);
}

// Packets of random tensors must be the same after decoding.
TEST(PacketCodec, RandomPackets) {
  auto random = testing::test_random();
  const auto draw = [&](int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<at::Tensor> tensors;
    for (int64_t count = draw(5); count >= 0; --count) {
      if (!tensors.empty() && tensors.back().defined() && draw(4) == 0) {
        tensors.push_back(tensors[static_cast<size_t>(draw(static_cast<int64_t>(tensors.size())))]);
        continue;
      }
      const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kLong, at::kHalf};
      at::Tensor tensor =
          at::randint(0, 100, {1 + draw(9), 1 + draw(9), 1 + draw(40)}, types[draw(4)]);
      if (draw(2) == 0) tensor = tensor.transpose(draw(3), draw(3));
      if (draw(2) == 0) {
        const int64_t dim = draw(3);
        const int64_t begin = draw(tensor.size(dim) + 1);
        tensor = tensor.narrow(dim, begin, draw(tensor.size(dim) - begin + 1));
      }
      if (draw(3) == 0) tensor = tensor.unsqueeze(0).expand({1 + draw(3), -1, -1, -1});
      if (draw(3) == 0 && tensor.numel() > 0) tensors.push_back(tensor.select(0, 0));
      tensors.push_back(draw(9) == 0 ? at::Tensor() : tensor);
    }
    expect_arrives(tensors);
    if (HasFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace gpipe::distributed
