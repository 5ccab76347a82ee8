#include "gpipe/internal/cell/cell.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/internal/graphs/replay_node.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::SizeIs;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<Packet> packets_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Packet> packets(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    packets[k].items.emplace_back();
    packets[k].items[0].tensor = tensors[k];
  }
  return packets;
}

// Calls a test's functions for leaves and foreign nodes. Without them, all leaves accumulate.
struct TestWalk final : CellGraph::Walk {
  using Walk::thread;
  using Walk::Walk;

  at::Tensor* sum_of(const NodePtr& /*accumulator*/, const at::Tensor& leaf) override {
    return sum ? sum(leaf) : nullptr;
  }
  void enter_foreign(const torch::autograd::Node& node) override {
    if (foreign) foreign(node);
  }

  std::function<at::Tensor*(const at::Tensor& leaf)> sum;
  std::function<void(const torch::autograd::Node& node)> foreign;
};

// Runs the backward of a graph, and holds the objects that it needs.
struct Backward {
  RandomStreams streams;
  TestWalk walk{CellRandom{&streams, /*step_seed=*/7, /*micro_batch=*/2, /*first_layer=*/3}};
  Roots roots;
  int64_t layer = 100;
  Packet target_gradients;

  std::vector<Packet> operator()(CellGraph& graph, const std::vector<at::Tensor>& gradients,
                                 BackwardPart part = BackwardPart::kWhole) {
    walk.target_gradients = &target_gradients;
    return graph.backward(packets_of(gradients), std::exchange(roots, Roots()), part, walk, layer);
  }
};

at::Tensor input_of(CellGraph& graph, const at::Tensor& value) {
  at::Tensor input = value.detach().clone();
  graph.inputs().add(0, input, /*wanted=*/true);
  return input;
}

using LayerFn = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor run_layers(CellGraph& graph, at::Tensor value, const std::vector<LayerFn>& layers) {
  graph.layers().begin();
  for (const LayerFn& layer : layers) {
    value = layer(value);
    graph.layers().end_layer();
  }
  graph.add_output(0, 0, value);
  return value;
}

at::Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

// --- sinks

TEST(Sinks, GiveWhatHasArrivedOnceInTheirPlaces) {
  Sinks sinks;
  const at::Tensor a = torch::randn({2});
  const at::Tensor b = torch::randn({2});
  const at::Tensor c = torch::randn({2});
  sinks.add(0, a, /*wanted=*/false);
  EXPECT_EQ(sinks.node(), nullptr);
  sinks.add(0, b, /*wanted=*/true);
  sinks.add(2, c, /*wanted=*/true);
  ASSERT_NE(sinks.node(), nullptr);
  EXPECT_FALSE(a.requires_grad());
  (b * 3).sum().backward();

  const std::vector<Packet> packets = sinks.take();
  ASSERT_THAT(packets, ElementsAre(::testing::Field(&Packet::items, SizeIs(2)),
                                   ::testing::Field(&Packet::items, SizeIs(0)),
                                   ::testing::Field(&Packet::items, SizeIs(1))));
  EXPECT_FALSE(packets[0].items[0].tensor.defined());
  EXPECT_THAT(packets[0].items[1].tensor, EqualsBitwise(torch::full({2}, 3.0)));
  EXPECT_FALSE(packets[2].items[0].tensor.defined());
  EXPECT_FALSE(sinks.take()[0].items[1].tensor.defined());
}

// --- whole and halves

struct Gradients {
  at::Tensor input;
  std::vector<at::Tensor> leaves;
};

Gradients gradients_of(const std::vector<BackwardPart>& parts) {
  testing::manual_seed(3);
  const std::vector<at::Tensor> leaves = {leaf({5, 5}), leaf({5}), leaf({5})};
  CellGraph graph;
  const at::Tensor output = run_layers(
      graph, input_of(graph, torch::randn({4, 5})),
      {[&](const at::Tensor& x) { return x.matmul(leaves[0].t()) + leaves[1]; },
       [&](const at::Tensor& x) { return (x * leaves[2].exp()).tanh() + x.mean() * leaves[1]; }});
  Gradients result;
  Backward backward;
  const at::Tensor seed = torch::randn({4, 5});
  for (BackwardPart part : parts) {
    std::vector<at::Tensor> given;
    if (part != BackwardPart::kWeights) given.push_back(seed);
    const std::vector<Packet> inputs = backward(graph, given, part);
    for (const at::Tensor& x : leaves) {
      EXPECT_EQ(x.grad().defined(), part != BackwardPart::kInputs);
    }
    EXPECT_EQ(inputs.size(), part == BackwardPart::kWeights ? 0u : 1u);
    if (!inputs.empty()) result.input = inputs[0].items[0].tensor;
  }
  EXPECT_EQ(backward.layer, 1) << "nothing failed";
  for (const at::Tensor& x : leaves) result.leaves.push_back(x.grad());
  return result;
}

TEST(CellGraph, BothHalvesAreTheWhole) {
  const Gradients whole = gradients_of({BackwardPart::kWhole});
  const Gradients halves = gradients_of({BackwardPart::kInputs, BackwardPart::kWeights});
  EXPECT_THAT(halves.input, EqualsBitwise(whole.input));
  for (size_t k = 0; k < whole.leaves.size(); ++k) {
    EXPECT_THAT(halves.leaves[k], EqualsBitwise(whole.leaves[k]));
  }
}

// The layers of a replayed cell are one node. It runs on this thread, like LibTorch's own nodes,
// and its errors name no single layer (-1).
TEST(CellGraph, AReplayBelongsToNoSingleLayer) {
  const at::Tensor w = leaf({3});
  const auto replayed = [&](ReplayNode::Run run) {
    CellGraph graph;
    const at::Tensor input = input_of(graph, torch::randn({3}));
    graph.layers().begin();
    const auto node = make_node<ReplayNode>(
        torch::autograd::edge_list{torch::autograd::impl::gradient_edge(input),
                                   torch::autograd::impl::gradient_edge(w)},
        std::move(run));
    const at::Tensor output = torch::randn({3});
    torch::autograd::set_history(output, node);
    graph.layers().end_layers_as_one(3);
    graph.add_output(0, 0, output);
    return graph;
  };
  const at::Tensor seed = torch::randn({3});
  const auto here = std::this_thread::get_id();
  CellGraph graph = replayed([&](torch::autograd::variable_list gradients) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    return torch::autograd::variable_list{gradients[0] * 2, gradients[0] * 3};
  });
  Backward backward;
  EXPECT_THAT(backward(graph, {seed.clone()})[0].items[0].tensor, EqualsBitwise(seed * 2));
  EXPECT_THAT(w.grad(), EqualsBitwise(seed * 3));

  CellGraph failing = replayed([](torch::autograd::variable_list) {
    throw std::runtime_error("a replay");
    return torch::autograd::variable_list();
  });
  EXPECT_THROW(backward(failing, {seed.clone()}), std::runtime_error);
  EXPECT_EQ(backward.layer, -1);
}

// The stage that gets the input's gradient may write into it. The weights' half must not see that.
TEST(CellGraph, AGradientThatTheOtherHalfNeedsLeavesAsACopy) {
  const at::Tensor bias = leaf({2, 3});
  CellGraph graph;
  run_layers(graph, input_of(graph, torch::randn({2, 3})),
             {[&](const at::Tensor& x) { return x + bias; }});
  const at::Tensor seed = torch::randn({2, 3});
  const at::Tensor want = seed.clone();
  Backward backward;
  const std::vector<Packet> inputs = backward(graph, {seed}, BackwardPart::kInputs);
  EXPECT_THAT(inputs[0].items[0].tensor, EqualsBitwise(want));
  inputs[0].items[0].tensor.zero_();
  backward(graph, {}, BackwardPart::kWeights);
  EXPECT_THAT(bias.grad(), EqualsBitwise(want));
}

TEST(CellGraph, RunsAgainWhereItIsKeptAndIsFreedWhereItIsNot) {
  const at::Tensor w = leaf({3, 3});
  CellGraph graph;
  at::Tensor output = run_layers(graph, input_of(graph, torch::randn({2, 3})),
                                 {[&](const at::Tensor& x) { return x.matmul(w).sigmoid(); }});
  const c10::weak_intrusive_ptr<c10::StorageImpl> saved = output.storage().getWeakStorageImpl();
  output.reset();
  const at::Tensor seed = torch::randn({2, 3});
  Backward backward;
  backward.walk.settings.keep_graph = true;
  const at::Tensor first = backward(graph, {seed.clone()})[0].items[0].tensor;
  const at::Tensor of_w = w.grad().clone();
  EXPECT_FALSE(saved.expired());
  backward.walk.settings.keep_graph = false;
  EXPECT_THAT(backward(graph, {seed.clone()})[0].items[0].tensor, EqualsBitwise(first));
  EXPECT_THAT(w.grad(), EqualsBitwise(of_w + of_w));
  EXPECT_TRUE(saved.expired());
}

TEST(CellGraph, RunsNothingForGradientsThatDidNotArrive) {
  const at::Tensor w = leaf({3});
  CellGraph graph;
  run_layers(graph, input_of(graph, torch::randn({3})),
             {[&](const at::Tensor& x) { return x * w; }});
  const std::vector<Packet> inputs = Backward()(graph, {at::Tensor()});
  ASSERT_THAT(inputs, SizeIs(1));
  ASSERT_THAT(inputs[0].items, SizeIs(1));
  EXPECT_FALSE(inputs[0].items[0].tensor.defined());
  EXPECT_FALSE(w.grad().defined());
}

// --- sums

TEST(CellGraph, AddsUpGradientsInTheOrderInWhichOutputsWereNamed) {
  const std::vector<at::Tensor> given = {torch::full({1}, 1e8f), torch::full({1}, 1.0f),
                                         torch::full({1}, -1e8f)};
  auto sum = [&](const std::vector<size_t>& order) {
    CellGraph graph;
    const at::Tensor x = input_of(graph, torch::ones({1}));
    graph.layers().begin();
    const at::Tensor y = x * 1;
    graph.layers().end_layer();
    for (size_t k : order) graph.add_output(k, 0, y);
    return Backward()(graph, {given[0].clone(), given[1].clone(), given[2].clone()})[0]
        .items[0]
        .tensor.item<float>();
  };
  EXPECT_EQ(sum({0, 1, 2}), 0);
  EXPECT_EQ(sum({0, 2, 1}), 1);
}

// Terms that other stages have left for a leaf come before the cell's own terms.
TEST(CellGraph, OtherRootsComeFirst) {
  const at::Tensor w = torch::ones({1}).requires_grad_();
  CellGraph graph;
  run_layers(graph, input_of(graph, torch::ones({1})), {[&](const at::Tensor& x) {
               const at::Tensor runs_last = (x * w) * -1e8;
               const at::Tensor runs_first = (x * w) * 1e8;
               return runs_last + runs_first;
             }});
  Backward backward;
  backward.roots.add(torch::autograd::impl::gradient_edge(w), torch::ones({1}));
  backward(graph, {torch::ones({1})});
  EXPECT_EQ(w.grad().item<float>(), 0) << "(1 + 1e8) - 1e8, in float";
}

// --- the layer that an error names

struct Fails : torch::autograd::Function<Fails> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, const variable_list&) {
    throw std::runtime_error("on purpose");
  }
};

TEST(CellGraph, BlamesTheLayerWhoseNodeFails) {
  for (int64_t failing = 0; failing < 3; ++failing) {
    CellGraph graph;
    std::vector<LayerFn> layers(3, [](const at::Tensor& x) { return x.sin().cos(); });
    layers[failing] = [](const at::Tensor& x) { return Fails::apply(x.sin()).cos(); };
    run_layers(graph, input_of(graph, torch::randn({2})), layers);
    Backward backward;
    EXPECT_THROW(backward(graph, {torch::ones({2})}), std::runtime_error);
    EXPECT_EQ(backward.layer, failing);
  }
}

TEST(CellGraph, BlamesTheLayerInTheSecondHalfToo) {
  const at::Tensor w = leaf({2});
  CellGraph graph;
  run_layers(graph, input_of(graph, torch::randn({2})),
             {[](const at::Tensor& x) { return x.sin(); },
              [&](const at::Tensor& x) { return x * Fails::apply(w); },
              [](const at::Tensor& x) { return x.cos(); }});
  Backward backward;
  backward(graph, {torch::ones({2})}, BackwardPart::kInputs);
  EXPECT_THROW(backward(graph, {}, BackwardPart::kWeights), std::runtime_error);
  EXPECT_EQ(backward.layer, 1);
}

TEST(CellGraph, BlamesNoLayerForWhatIsFromBefore) {
  const at::Tensor w = leaf({2});
  const at::Tensor outside = Fails::apply(w);
  auto graph_with = [&] {
    CellGraph graph;
    run_layers(graph, input_of(graph, torch::randn({2})),
               {[&](const at::Tensor& x) { return x * outside; }});
    return graph;
  };
  {
    CellGraph graph = graph_with();
    Backward backward;
    EXPECT_THROW(backward(graph, {torch::ones({2})}), std::runtime_error);
    EXPECT_EQ(backward.layer, -1);
  }
  {
    // If the walk refuses a node, the error names the layer that uses the node, although nothing
    // has run.
    CellGraph graph = graph_with();
    Backward backward;
    uint64_t made_on = 0;
    backward.walk.foreign = [&](const torch::autograd::Node& node) {
      EXPECT_EQ(&node, outside.grad_fn().get());
      EXPECT_EQ(backward.walk.layer(), 0)
          << "while the node is refused, layer() must be known for the message";
      made_on = backward.walk.thread();
      throw std::runtime_error("refused");
    };
    EXPECT_THROW(backward(graph, {torch::ones({2})}), std::runtime_error);
    EXPECT_EQ(made_on, outside.grad_fn()->thread_id());
    EXPECT_EQ(backward.layer, 0) << "layer 0 uses the foreign node";
  }
}

// The walk refuses a leaf or a node before anything has run. The error names the layer that uses
// the leaf or node.
TEST(CellGraph, BlamesTheLayerThatLeadsToWhatIsRefused) {
  const at::Tensor x = torch::randn({2});
  const at::Tensor outside = leaf({2}).sin();
  const at::Tensor scale = leaf({2});
  for (const bool with_loss : {false, true}) {
    for (const bool foreign : {false, true}) {
      SCOPED_TRACE(std::string(with_loss ? "with a loss" : "without a loss") +
                   (foreign ? ", a graph" : ", a leaf"));
      CellGraph graph;
      at::Tensor output =
          run_layers(graph, input_of(graph, x),
                     {[](const at::Tensor& value) { return value.sin(); },
                      [&](const at::Tensor& value) { return value * (foreign ? outside : scale); },
                      [](const at::Tensor& value) { return value.exp(); }});
      Backward backward;
      if (with_loss) {
        CellGraph loss;
        loss.layers().begin_loss(3);
        loss.add_output(0, 0, output.sum());
        graph.append_loss(std::move(loss));
      }
      int64_t told = 100;
      const auto refuse = [&] {
        told = backward.walk.layer();
        throw std::runtime_error("refused");
      };
      backward.walk.sum = [&](const at::Tensor& tensor) -> at::Tensor* {
        if (tensor.is_same(scale)) refuse();
        return nullptr;
      };
      backward.walk.foreign = [&](const torch::autograd::Node&) { refuse(); };
      EXPECT_THROW(backward(graph, {torch::ones(with_loss ? at::IntArrayRef() : x.sizes())}),
                   std::runtime_error);
      EXPECT_EQ(told, 1) << "while it was refused";
      EXPECT_EQ(backward.layer, 1) << "afterwards";
    }
  }
}

// --- losses

// Two layers and a loss, which also uses a leaf of the layers.
struct CellWithLoss {
  explicit CellWithLoss(bool cut_off) : cut(cut_off) {
    testing::manual_seed(5);
    x = torch::randn({4, 3});
    w = leaf({3, 3});
    scale = leaf({3});
    target = torch::randn({4, 3});
    at::Tensor output =
        run_layers(graph, input_of(graph, x),
                   {[&](const at::Tensor& value) { return value.matmul(w); },
                    [&](const at::Tensor& value) { return (value * scale).tanh(); }});
    if (cut) {
      output = detached_alias(output);
      loss.inputs().add(0, output, /*wanted=*/true);
    }
    loss.layers().begin_loss(2);
    loss.targets().add(0, torch::randn({2}), /*wanted=*/false);
    loss.targets().add(0, target, /*wanted=*/true);
    loss.add_output(0, 0, (((output - target) * scale).pow(2) * output).mean());
    if (!cut) graph.append_loss(std::move(loss));
  }

  // Runs the backward of the loss and of the layers as a stage does.
  at::Tensor run() {
    std::vector<at::Tensor> gradients = {torch::full({}, 0.5)};
    if (cut) {
      at::Tensor sum;
      backward.walk.sum = [&](const at::Tensor&) { return &sum; };
      gradients = {backward(loss, gradients)[0].items[0].tensor};
      backward.walk.sum = nullptr;
      backward.roots.add(torch::autograd::impl::gradient_edge(scale), sum);
    }
    return backward(graph, gradients)[0].items[0].tensor;
  }

  const bool cut;
  at::Tensor x, w, scale, target;
  CellGraph graph, loss;
  Backward backward;
};

TEST(CellGraphOfALoss, GivesTheSameBehindTheLayersAndJoinedToThem) {
  CellWithLoss joined(false);
  CellWithLoss behind(true);
  const at::Tensor want = joined.run();
  EXPECT_THAT(behind.run(), EqualsBitwise(want));
  EXPECT_THAT(behind.w.grad(), EqualsBitwise(joined.w.grad()));
  EXPECT_THAT(behind.scale.grad(), EqualsBitwise(joined.scale.grad()));

  at::Tensor leaf_x = joined.x.clone().requires_grad_();
  at::Tensor leaf_target = joined.target.detach().clone().requires_grad_();
  const at::Tensor y = (leaf_x.matmul(joined.w) * joined.scale).tanh();
  (((y - leaf_target) * joined.scale).pow(2) * y).mean().backward(torch::full({}, 0.5));
  EXPECT_THAT(want, EqualsBitwise(leaf_x.grad()));
  for (const CellWithLoss* cell : {&joined, &behind}) {
    ASSERT_THAT(cell->backward.target_gradients.items, SizeIs(2));
    EXPECT_FALSE(cell->backward.target_gradients.items[0].tensor.defined());
    EXPECT_THAT(cell->backward.target_gradients.items[1].tensor, EqualsBitwise(leaf_target.grad()));
  }
}

TEST(CellGraphOfALoss, IsTheLayerBehindTheLast) {
  const at::Tensor x = torch::randn({2});
  for (bool cut : {false, true}) {
    for (bool loss_fails : {false, true}) {
      auto fails_if = [](bool fails) {
        return [fails](const at::Tensor& value) { return fails ? Fails::apply(value) : value; };
      };
      CellGraph graph;
      at::Tensor output =
          run_layers(graph, input_of(graph, x),
                     {[](const at::Tensor& value) { return value.sin(); }, fails_if(!loss_fails)});
      CellGraph loss;
      if (cut) {
        output = detached_alias(output);
        loss.inputs().add(0, output, /*wanted=*/true);
      }
      loss.layers().begin_loss(2);
      loss.add_output(0, 0, fails_if(loss_fails)(output).sum());
      Backward backward;
      CellGraph& runs = cut && loss_fails ? loss : graph;
      const bool on_the_loss = !cut || loss_fails;
      if (!cut) graph.append_loss(std::move(loss));
      EXPECT_THROW(backward(runs, {torch::ones(on_the_loss ? at::IntArrayRef() : x.sizes())}),
                   std::runtime_error);
      EXPECT_EQ(backward.layer, loss_fails ? 2 : 1);
    }
  }
}

TEST(CellGraphOfALoss, IsBlamedForAllThatRunsForItAlone) {
  const at::Tensor outside = Fails::apply(leaf({2}));
  CellGraph loss;
  loss.layers().begin_loss(3);
  loss.add_output(0, 0, outside.sum());
  Backward backward;
  EXPECT_THROW(backward(loss, {torch::ones({})}), std::runtime_error);
  EXPECT_EQ(backward.layer, 3);
}

// --- draws

// Draws a mask under no_grad, as a custom function's forward does, and again in its backward.
struct DrawsTwice : torch::autograd::Function<DrawsTwice> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) {
    return x * torch::rand_like(x);
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0] * torch::rand_like(gradients[0])};
  }
};

// Returns the input's gradient and the output of a cell whose layers draw random numbers.
std::pair<at::Tensor, at::Tensor> draw(const LayerFn& layer,
                                       const std::vector<BackwardPart>& parts) {
  InterceptionScope mode;
  Backward backward;
  CellGraph graph;
  at::Tensor output;
  {
    RandomStreamsScope scope(&backward.streams, &graph.draws());
    backward.streams.enter(/*step_seed=*/7, /*micro_batch=*/2, /*layer=*/3);
    output = run_layers(graph, input_of(graph, torch::ones({6})), {layer}).detach();
  }
  RandomStreamsScope scope(&backward.streams, nullptr);
  at::Tensor input;
  for (BackwardPart part : parts) {
    std::vector<Packet> inputs = backward(graph, {torch::ones({6})}, part);
    if (!inputs.empty()) input = inputs[0].items[0].tensor;
  }
  return {input, output};
}

TEST(CellGraph, AFunctionDrawsAgainWhatItsForwardDrew) {
  const auto [input, output] =
      draw([](const at::Tensor& x) { return DrawsTwice::apply(x); }, {BackwardPart::kWhole});
  EXPECT_THAT(input, EqualsBitwise(output));
}

TEST(CellGraph, HooksDrawTheSameInHalves) {
  const at::Tensor bias = leaf({6});
  std::vector<at::Tensor> drawn;
  bias.register_hook([&](const at::Tensor& g) { drawn.push_back(torch::rand_like(g)); });
  const LayerFn layer = [&](const at::Tensor& x) {
    at::Tensor y = x.sin();
    y.register_hook([](const at::Tensor& g) { return g + torch::rand_like(g); });
    return y + bias;
  };
  const auto whole = draw(layer, {BackwardPart::kWhole});
  const auto halves = draw(layer, {BackwardPart::kInputs, BackwardPart::kWeights});
  EXPECT_THAT(halves.first, EqualsBitwise(whole.first));
  ASSERT_THAT(drawn, SizeIs(2));
  EXPECT_THAT(drawn[1], EqualsBitwise(drawn[0]));
}

}  // namespace
}  // namespace gpipe::internal
