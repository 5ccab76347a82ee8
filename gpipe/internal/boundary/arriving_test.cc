#include "gpipe/internal/boundary/arriving.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A stage that gets an activation by its first port and a skip by its second.
Boundary boundary_of(int64_t stage, bool copies = false) {
  Boundary boundary;
  boundary.stage = stage;
  boundary.copies = copies;
  boundary.ports.inputs.push_back({std::nullopt, stage - 1});
  boundary.ports.inputs.push_back({skip::Key{skip::Namespace::common(), "a"}, 0});
  return boundary;
}

Item item_of(const at::Tensor& tensor, bool needs_grad = true) {
  Item item;
  item.tensor = tensor;
  item.needs_grad = needs_grad;
  item.mark_version();
  return item;
}

// [port] packets of one item each.
std::vector<Packet> packets_of(std::vector<Item> items) {
  std::vector<Packet> packets;
  for (Item& item : items) {
    packets.emplace_back();
    packets.back().items.push_back(std::move(item));
  }
  return packets;
}

// The tensors that the layers of a cell get, and the notes of attach() about them.
struct Attached {
  Attached(const Boundary& boundary, const std::vector<Packet>& inputs, bool record = true)
      : tensors(attach(boundary, record, inputs, result, read_only)) {}

  bool is_watched(const at::Tensor& tensor) const {
    try {
      read_only.check([] { return std::string("layer"); });
      tensor.add_(1);
      read_only.check([] { return std::string("layer"); });
    } catch (const c10::Error&) {
      return true;
    }
    return false;
  }

  LayersResult result;
  ReadOnlyInputs read_only;
  std::vector<std::vector<at::Tensor>> tensors;
};

TEST(CheckArrivedTest, AChangeOnTheWayLosesAGradient) {
  at::Tensor activation = at::ones({2});
  at::Tensor skip = at::ones({2});
  std::vector<Packet> inputs = packets_of({item_of(activation), item_of(skip)});
  EXPECT_NO_THROW(check_arrived(boundary_of(2), true, inputs));
  skip.add_(1);
  EXPECT_THAT([&] { check_arrived(boundary_of(2), true, inputs); },
              ThrowsMessage<c10::Error>(HasSubstr("the skip 'a' of stage 2 was changed in place")));
  inputs[1].items[0].mark_version();
  activation.add_(1);
  EXPECT_THAT([&] { check_arrived(boundary_of(2), true, inputs); },
              ThrowsMessage<c10::Error>(HasSubstr("an input of stage 2 was changed in place")));
}

TEST(CheckArrivedTest, WithoutAGradientTheChangedValueIsThePlainModels) {
  at::Tensor numbers = at::arange(3);
  std::vector<Packet> inputs = packets_of({item_of(numbers, false)});
  numbers.add_(1);
  EXPECT_NO_THROW(check_arrived(boundary_of(1), true, inputs)) << "integers have no gradient";
  EXPECT_FALSE(inputs[0].items[0].is_changed()) << "later changes are counted from here";
  at::Tensor values = at::ones({2});
  inputs = packets_of({item_of(values)});
  values.add_(1);
  EXPECT_NO_THROW(check_arrived(boundary_of(1), false, inputs))
      << "without a recorded graph a change does no harm";
}

TEST(CheckArrivedTest, ACopyMissesTheChange) {
  at::Tensor numbers = at::arange(3);
  std::vector<Packet> inputs = packets_of({item_of(numbers, false)});
  numbers.add_(1);
  EXPECT_THROW(check_arrived(boundary_of(1, /*copies=*/true), true, inputs), c10::Error);
}

TEST(AttachTest, LayersGetAliasesWhoseGradientsEndInTheCell) {
  const at::Tensor wanted = at::ones({2});
  const at::Tensor other = at::ones({2});
  const Attached attached(boundary_of(1),
                          packets_of({item_of(wanted), item_of(other, /*needs_grad=*/false)}));
  const at::Tensor& alias = attached.tensors[0][0];
  EXPECT_TRUE(alias.requires_grad());
  EXPECT_TRUE(alias.is_alias_of(wanted));
  EXPECT_FALSE(alias.is_leaf()) << "a layer may change it in place";
  EXPECT_FALSE(wanted.requires_grad());
  EXPECT_FALSE(attached.tensors[1][0].requires_grad());
  const Attached evaluated(boundary_of(1), packets_of({item_of(wanted)}), /*record=*/false);
  EXPECT_FALSE(evaluated.tensors[0][0].requires_grad());
}

TEST(AttachTest, TwinsAreOneTensorWithOneGradient) {
  const at::Tensor tensor = at::ones({2});
  Attached attached(boundary_of(1), packets_of({item_of(tensor), item_of(tensor)}));
  EXPECT_TRUE(attached.tensors[0][0].is_same(attached.tensors[1][0]));
  attached.tensors[0][0].mul(attached.tensors[1][0]).sum().backward();
  const std::vector<Packet> gradients = attached.result.graph.inputs().take();
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_THAT(gradients[0].items.at(0).tensor, EqualsBitwise(at::ones({2}) * 2));
  EXPECT_FALSE(gradients[1].items.at(0).tensor.defined());
}

TEST(AttachTest, AliasesOfOneMemoryAreTwoTensors) {
  const at::Tensor tensor = at::ones({2});
  Attached attached(boundary_of(1), packets_of({item_of(tensor), item_of(detached_alias(tensor))}));
  EXPECT_FALSE(attached.tensors[0][0].is_same(attached.tensors[1][0]));
  attached.tensors[0][0].mul(attached.tensors[1][0]).sum().backward();
  const std::vector<Packet> gradients = attached.result.graph.inputs().take();
  EXPECT_TRUE(gradients[0].items.at(0).tensor.defined());
  EXPECT_TRUE(gradients[1].items.at(0).tensor.defined());
}

TEST(AttachTest, AnUndefinedInputStaysUndefined) {
  Item read_only = item_of(at::Tensor(), /*needs_grad=*/false);
  read_only.read_only = true;
  const Attached attached(boundary_of(1, /*copies=*/true),
                          packets_of({item_of(at::Tensor(), false), read_only}));
  EXPECT_FALSE(attached.tensors[0][0].defined());
  EXPECT_FALSE(attached.tensors[1][0].defined());
}

TEST(AttachTest, ReadOnlyInputsAreWatchedWhereAGradientOrACopyWouldMissAChange) {
  const auto is_watched = [](const Boundary& boundary, Item item, bool record, auto mark) {
    mark(item);
    const Attached attached(boundary, packets_of({item}), record);
    const at::Tensor tensor = detached_alias(attached.tensors[0][0]);
    return attached.is_watched(tensor);
  };
  const auto nothing = [](Item&) {};
  const auto read_only = [](Item& item) { item.read_only = true; };
  const auto constant = [](Item& item) { item.constant = true; };
  EXPECT_FALSE(is_watched(boundary_of(1), item_of(at::ones({2})), true, nothing));
  EXPECT_TRUE(is_watched(boundary_of(1), item_of(at::ones({2})), true, read_only));
  EXPECT_TRUE(is_watched(boundary_of(1), item_of(at::ones({2}), false), true, read_only))
      << "an in-place change may bring in a parameter, so a tensor without a gradient is watched, "
         "too";
  EXPECT_FALSE(is_watched(boundary_of(1), item_of(at::ones({2})), false, read_only));
  EXPECT_FALSE(is_watched(boundary_of(1), item_of(at::arange(2), false), true, read_only));
  EXPECT_TRUE(
      is_watched(boundary_of(1, /*copies=*/true), item_of(at::arange(2), false), true, read_only));
  EXPECT_TRUE(is_watched(boundary_of(1), item_of(at::arange(2), false), false, constant));
  EXPECT_FALSE(is_watched(boundary_of(0), item_of(at::ones({2})), false, constant))
      << "inputs of stage 0 are watched by CallerInputs";
}

TEST(AttachTest, MarkedMemoryIsKnownToWhatLeaves) {
  Item read_only = item_of(at::ones({2}));
  read_only.read_only = true;
  Item shared = item_of(at::ones({2}));
  shared.shared = shared.constant = true;
  const Attached attached(boundary_of(1), packets_of({read_only, shared}));
  const auto knows = [](const WeakStorages& memory, const Item& item) {
    return contains(memory, storage_of(item.tensor));
  };
  EXPECT_TRUE(knows(attached.result.read_only, read_only));
  EXPECT_FALSE(knows(attached.result.read_only, shared));
  EXPECT_TRUE(knows(attached.result.shared, shared));
  EXPECT_FALSE(knows(attached.result.shared, read_only));
  EXPECT_TRUE(knows(attached.result.constant, shared));
  EXPECT_FALSE(knows(attached.result.constant, read_only));
}

}  // namespace
}  // namespace gpipe::internal
