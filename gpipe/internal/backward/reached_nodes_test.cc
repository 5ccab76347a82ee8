#include "gpipe/internal/backward/reached_nodes.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/walks_for_tests.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using torch::autograd::Node;

at::Tensor leaf() { return torch::ones({2}).requires_grad_(); }

NodePtr node_of(const at::Tensor& tensor) {
  return torch::autograd::impl::gradient_edge(tensor).function;
}

// Records what the visitor is asked, and where the walk is at that time.
class Notes final : public WalkVisitor {
 public:
  void enter_foreign(const Node& node) override {
    foreign.emplace_back(&node, progress.node);
    if (refuse) throw std::runtime_error("refused");
  }
  at::Tensor* sum_of(const NodePtr& accumulator, const at::Tensor&) override {
    EXPECT_FALSE(progress.found);
    leaves.emplace_back(accumulator.get(), progress.node);
    return accumulator == summed ? &sum : nullptr;
  }
  at::Tensor* in_place_of_grad(const NodePtr& accumulator, const at::Tensor&) override {
    EXPECT_NE(accumulator, summed);
    return accumulator == replaced ? &sum : nullptr;
  }

  using Notice = std::pair<const Node*, uint64_t>;
  std::vector<Notice> foreign, leaves;
  bool refuse = false;
  NodePtr summed, replaced;
  at::Tensor sum;
};

TEST(ReachedNodes, WaitForAsManyGradientsAsTheyAreUsed) {
  const at::Tensor x = leaf();
  const at::Tensor inner = x.exp();
  const at::Tensor outer = inner * inner + inner;
  WalkVisitor visitor;
  ReachedNodes nodes(visitor);
  for (const auto& root : roots_of({outer, inner})) nodes.reach(root);
  nodes.find_rest();
  EXPECT_EQ(nodes.at(node_of(outer).get()).gradients, 1);
  EXPECT_EQ(nodes.at(node_of(inner).get()).gradients, 4);
  EXPECT_EQ(nodes.at(node_of(x).get()).gradients, 1);
  EXPECT_TRUE(nodes.at(node_of(x).get()).leaf);
  EXPECT_FALSE(nodes.at(node_of(inner).get()).leaf);
  int count = 0;
  nodes.for_each([&](Node&, ReachedNode&) { ++count; });
  EXPECT_EQ(count, 4);
  EXPECT_TRUE(visitor.progress.found);
  EXPECT_EQ(visitor.progress.node, WalkProgress::kNone);
}

TEST(ReachedNodes, TellWhatIsFromOutsideAndWhatLeadsThere) {
  const at::Tensor x = leaf();
  const at::Tensor outside = x.exp();
  const at::Tensor behind = outside.sin();
  Notes notes;
  notes.settings.own =
      NodeRange{at::RecordFunction::currentThreadId(), at::sequence_number::peek()};
  const at::Tensor y = behind * 2;
  ReachedNodes nodes(notes);
  nodes.reach(roots_of({y})[0]);
  nodes.find_rest();
  const uint64_t from = node_of(y)->sequence_nr();
  using Notice = Notes::Notice;
  EXPECT_THAT(notes.foreign, ElementsAre(Notice(node_of(behind).get(), from),
                                         Notice(node_of(outside).get(), from)));
  EXPECT_THAT(notes.leaves, ElementsAre(Notice(node_of(x).get(), from)));
  EXPECT_TRUE(nodes.at(node_of(outside).get()).foreign);
  EXPECT_FALSE(nodes.at(node_of(y).get()).foreign);
  EXPECT_FALSE(nodes.at(node_of(x).get()).foreign) << "a leaf is not foreign";

  notes.refuse = true;
  ReachedNodes again(notes);
  again.reach(roots_of({y})[0]);
  EXPECT_THROW(again.find_rest(), std::runtime_error);
  EXPECT_FALSE(notes.progress.found);
  EXPECT_EQ(notes.progress.node, from);
}

TEST(ReachedNodes, LeavesAccumulateWhereTheVisitorSays) {
  const at::Tensor plain = leaf();
  const at::Tensor known = leaf();
  known.mutable_grad() = torch::ones({2});
  const at::Tensor summed = leaf();
  const at::Tensor replaced = leaf();
  const at::Tensor y = plain * known + summed * replaced;
  Notes notes;
  notes.summed = node_of(summed);
  {
    ReachedNodes nodes(notes);
    nodes.reach(roots_of({y})[0]);
    nodes.find_rest();
    EXPECT_FALSE(nodes.replaces_grads());
    EXPECT_EQ(nodes.at(node_of(summed).get()).sum, &notes.sum);
    EXPECT_EQ(nodes.at(node_of(plain).get()).sum, nullptr);
    EXPECT_EQ(&ReachedNodes::sum_in(*node_of(known), nodes.at(node_of(known).get())),
              &known.mutable_grad());
    EXPECT_THAT(nodes.fresh_leaves(),
                ::testing::UnorderedElementsAre(node_of(plain).get(), node_of(replaced).get()));
  }
  notes.replaced = node_of(replaced);
  ReachedNodes nodes(notes);
  nodes.reach(roots_of({y})[0]);
  nodes.find_rest();
  EXPECT_TRUE(nodes.replaces_grads());
  EXPECT_EQ(&ReachedNodes::sum_in(*node_of(replaced), nodes.at(node_of(replaced).get())),
            &notes.sum);
}

TEST(ReachedNodes, RefuseASinkOfOthers) {
  auto mine = make_node<GradientSink>();
  auto other = make_node<GradientSink>();
  at::Tensor x = torch::ones({2});
  at::Tensor hidden = torch::ones({2});
  mine->attach(x);
  other->attach(hidden);
  WalkVisitor visitor;
  visitor.settings.sinks = {mine.get()};
  ReachedNodes nodes(visitor);
  const at::Tensor y = x * 2;
  const at::Tensor of_others = hidden * 2;
  nodes.reach(roots_of({y})[0]);
  EXPECT_NO_THROW(nodes.find_rest());
  nodes.reach(roots_of({of_others})[0]);
  EXPECT_THROW(nodes.find_rest(), c10::Error);
}

TEST(ReachedNodes, KnowUsersCodeAndWhatWasMadeAfterIt) {
  const at::Tensor x = leaf();
  const at::Tensor hooked = x.exp();
  const at::Tensor between = hooked.sin();
  const at::Tensor last = between * hooked;
  WalkVisitor visitor;
  {
    ReachedNodes nodes(visitor);
    nodes.reach(roots_of({last})[0]);
    nodes.find_rest();
    EXPECT_FALSE(nodes.has_writers());
    EXPECT_EQ(nodes.next_made_after(*node_of(hooked)), node_of(between)->sequence_nr());
  }
  x.register_hook([](const at::Tensor& gradient) { return gradient; });
  {
    ReachedNodes nodes(visitor);
    nodes.reach(roots_of({last})[0]);
    nodes.find_rest();
    EXPECT_FALSE(nodes.has_writers()) << "a leaf's hook sees that leaf's gradient only";
    EXPECT_TRUE(nodes.at(node_of(x).get()).users_code);
  }
  hooked.register_hook([](const at::Tensor& gradient) { return gradient; });
  ReachedNodes nodes(visitor);
  nodes.reach(roots_of({last})[0]);
  nodes.find_rest();
  EXPECT_TRUE(nodes.has_writers());
  EXPECT_TRUE(nodes.at(node_of(hooked).get()).users_code);
  EXPECT_FALSE(nodes.at(node_of(between).get()).users_code);
}

}  // namespace
}  // namespace gpipe::internal
