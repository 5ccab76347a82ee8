#include "gpipe/internal/backward/local_backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/split_backward.h"
#include "gpipe/internal/backward/walks_for_tests.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

constexpr int kLeaves = 4;

// Runs the backward of `outputs` in halves; the first half gives the gradient of `input`, if that
// is defined.
at::Tensor halves(const std::vector<at::Tensor>& outputs, const NodePtrTo<GradientSink>& input) {
  WalkVisitor visitor;
  visitor.settings.sinks = {input.get()};
  variable_list gradients = ones_for(outputs);
  WeightBackward rest = run_input_backward(roots_of(outputs), gradients, visitor);
  at::Tensor result;
  if (input != nullptr && !input->gradients().empty()) result = input->gradients()[0];
  const at::Tensor copy = result.defined() ? result.clone() : result;
  rest.run(visitor);
  if (result.defined()) {
    EXPECT_THAT(result.to_dense(), EqualsBitwise(copy.to_dense())) << "changed by the second half";
  }
  return result;
}

// Runs `model` on fresh leaves, and its backward twice: in the engine, locally, and locally in
// halves, with each of the leaves, or none, as the input of a stage.
void expect_same_as_engine(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& leaves)>& model) {
  enum class Way { kEngine, kWhole, kHalves };
  auto run = [&](Way way, int input) {
    testing::manual_seed(3);
    std::vector<at::Tensor> leaves;
    for (int i = 0; i < kLeaves; ++i) leaves.push_back(torch::randn({5, 5}).requires_grad_());
    at::Tensor of_input;
    for (int call = 0; call < 2; ++call) {  // the second call adds to existing gradients
      std::vector<at::Tensor> given = leaves;
      NodePtrTo<GradientSink> sink;
      if (way == Way::kEngine && input >= 0) {
        // The input comes from a node that was made before the nodes of the model.
        given[input] = leaves[input] * 1;
      }
      if (way == Way::kHalves && input >= 0) {
        sink = make_node<GradientSink>();
        given[input] = leaves[input].detach();
        sink->attach(given[input]);
        given[input].mutable_grad() = leaves[input].mutable_grad();
      }
      const std::vector<at::Tensor> outputs = model(given);
      const edge_list roots = roots_of(outputs);
      variable_list gradients = ones_for(outputs);
      if (way == Way::kEngine) {
        torch::autograd::Engine::get_default_engine().execute(roots, gradients, false, false, true);
      } else if (way == Way::kWhole) {
        run_plainly(roots, gradients);
      } else {
        const at::Tensor gradient = halves(outputs, sink);
        if (gradient.defined()) of_input = of_input.defined() ? of_input + gradient : gradient;
      }
    }
    variable_list result;
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
    if (input >= 0 && of_input.defined()) result[input] = of_input;
    return result;
  };
  auto compare = [](const variable_list& result, const variable_list& expected) {
    for (size_t k = 0; k < expected.size(); ++k) {
      ASSERT_EQ(result[k].defined(), expected[k].defined()) << k;
      if (!expected[k].defined()) continue;
      ASSERT_EQ(result[k].layout(), expected[k].layout()) << k;
      EXPECT_THAT(result[k].to_dense(), EqualsBitwise(expected[k].to_dense())) << k;
    }
  };
  compare(run(Way::kWhole, -1), run(Way::kEngine, -1));
  for (int input = -1; input < kLeaves; ++input) {
    SCOPED_TRACE("halves, input " + std::to_string(input));
    compare(run(Way::kHalves, input), run(Way::kEngine, input));
  }
}

using Leaves = std::vector<at::Tensor>;

TEST(LocalBackward, AChain) {
  expect_same_as_engine([](const Leaves& x) { return Leaves{(x[0].matmul(x[1]).tanh() + x[2])}; });
}

TEST(LocalBackward, SumsOfManyUsesAreAddedInTheEnginesOrder) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor y = x[0] * 1.1;
    at::Tensor sum = y.sin();
    for (int i = 0; i < 9; ++i) sum = sum + (y * (0.3 + i)).cos() * sum.exp().tanh();
    return Leaves{sum};
  });
}

TEST(LocalBackward, SeveralRootsOneBehindAnother) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor inner = x[0].matmul(x[1]).sigmoid();
    at::Tensor outer = (inner * x[2]).matmul(inner) * inner;
    return Leaves{inner, outer, inner};
  });
}

TEST(LocalBackward, BroadcastAndCastGradientsAreReduced) {
  expect_same_as_engine([](const Leaves& x) {
    return Leaves{(x[0][0] + x[1]).to(torch::kDouble) * x[2].select(1, 0).unsqueeze(1)};
  });
}

TEST(LocalBackward, SparseGradients) {
  expect_same_as_engine([](const Leaves& x) {
    namespace F = torch::nn::functional;
    const at::Tensor indices = torch::tensor({0, 3, 3, 1});
    return Leaves{F::embedding(indices, x[0], F::EmbeddingFuncOptions().sparse(true)) * 2};
  });
}

TEST(LocalBackward, ChangesInPlaceAndViews) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor y = x[0] * 2;
    y.slice(0, 1, 3).mul_(x[1].slice(0, 0, 2));
    y.add_(x[3].t());
    return Leaves{y.t().matmul(x[2])};
  });
}

// After a change of its base LibTorch makes a view's graph anew, with a node that is later than the
// nodes in front of it. The order of nodes must still be the engine's.
TEST(LocalBackward, ViewsThatWereChangedThroughTheirBase) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor y = x[0] * x[1];
    const at::Tensor view = y.view_as(y);
    y.add_(x[2]);
    return Leaves{y.matmul(x[3]) * x[1], view.sin() * x[2] + view};
  });
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor y = x[0].sigmoid() * 0.5;
    const at::Tensor part = y.narrow(1, 0, 2);
    y.mul_(x[1]).copy_(y * 2 + x[3]);
    return Leaves{part.matmul(x[2].narrow(0, 0, 2)) * x[3], y.matmul(x[1]) + x[3]};
  });
}

TEST(LocalBackward, KeepsTheGraphIfAskedTo) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor y = x.exp();
  WalkSettings keep;
  keep.keep_graph = true;
  for (int i = 1; i <= 2; ++i) {
    variable_list gradients = ones_for({y});
    run_plainly(roots_of({y}), gradients, keep);
    EXPECT_THAT(x.grad(), EqualsBitwise(i * y)) << i;
  }
  variable_list gradients = ones_for({y});
  run_plainly(roots_of({y}), gradients);
  gradients = ones_for({y});
  EXPECT_THROW(run_plainly(roots_of({y}), gradients), c10::Error)
      << "the tensors that the node had saved are freed";
}

TEST(LocalBackward, AGradientOfAnotherShapeIsRefused) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor y = x.exp();
  variable_list gradients = {torch::ones({2})};
  EXPECT_THROW(run_plainly(roots_of({y}), gradients), c10::Error);
}

TEST(LocalBackward, ThrowsWhatANodeThrows) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor saved = x * 2;
  const at::Tensor y = saved.exp() * saved;
  saved.detach().add_(1);
  variable_list gradients = ones_for({y});
  EXPECT_THROW(run_plainly(roots_of({y}), gradients), c10::Error);
  EXPECT_FALSE(x.grad().defined());
}

TEST(LocalBackward, HooksAreCalledAsTheEngineCallsThem) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor inner = x[0].matmul(x[1]);
    inner.register_hook([](const at::Tensor& g) { return g * 0.5; });
    at::Tensor outer = inner.tanh() * inner;
    outer.retain_grad();
    if (!x[2].grad().defined()) x[2].register_hook([](const at::Tensor& g) { return g + 1; });
    return Leaves{outer * x[2] + x[2].exp()};
  });
}

TEST(LocalBackward, RetainedGradientsAreThere) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor inner = x * 2;
  inner.retain_grad();
  variable_list gradients = ones_for({inner});
  run_plainly(roots_of({inner.exp()}), gradients);
  EXPECT_THAT(inner.grad(), EqualsBitwise(inner.exp().detach()));
}

struct TwiceFunction : torch::autograd::Function<TwiceFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                variable_list gradients) {
    EXPECT_EQ(context->get_saved_variables().size(), 1u);
    // Some libraries wait for the end of the backward with queue_callback(), which needs a graph
    // task of the engine.
    torch::autograd::Engine::get_default_engine().queue_callback([] { ++callbacks; });
    return {gradients[0] * 2};
  }
  static inline int callbacks = 0;
};

TEST(LocalBackward, CustomFunctionsFindTheEnginesTask) {
  TwiceFunction::callbacks = 0;
  expect_same_as_engine([](const Leaves& x) {
    return Leaves{TwiceFunction::apply(x[0] * x[1]).exp() + TwiceFunction::apply(x[0]) * x[2]};
  });
  EXPECT_EQ(TwiceFunction::callbacks, 4 * 2 * (1 + 1 + kLeaves));
}

struct PairFunction : torch::autograd::Function<PairFunction> {
  static variable_list forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                               const at::Tensor& y) {
    return {x * y.detach(), x + y};
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    EXPECT_TRUE(gradients[1].defined());
    return {gradients[1] * 3, at::Tensor()};
  }
};

TEST(LocalBackward, CustomFunctionsWithSeveralValuesAndUndefinedGradients) {
  expect_same_as_engine([](const Leaves& x) {
    const variable_list pair = PairFunction::apply(x[0] * 1.5, x[1].sin());
    return Leaves{pair[1] * x[2]};
  });
}

TEST(LocalBackward, AnomalyModeFindsWhatIsNotANumber) {
  torch::autograd::DetectAnomalyGuard anomaly;
  expect_same_as_engine([](const Leaves& x) { return Leaves{x[0].exp() * x[1]}; });
  const at::Tensor x = torch::zeros({3}).requires_grad_();
  const at::Tensor y = x.sqrt() * 0;
  variable_list gradients = ones_for({y});
  try {
    run_plainly(roots_of({y}), gradients);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("SqrtBackward0"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("nan"));
  }
}

// The two leaves must not share memory. In LibTorch's own accumulation they would, because .grad
// takes the memory of a view there.
TEST(LocalBackward, GradientsOfLeavesHaveMemoryOfTheirOwn) {
  const at::Tensor a = torch::randn({4}).requires_grad_();
  const at::Tensor b = torch::randn({4}).requires_grad_();
  for (int call = 1; call <= 2; ++call) {
    const at::Tensor y = a.unsqueeze(0) + b.unsqueeze(0) * 1;
    variable_list gradients = {torch::full({1, 4}, 3.0)};
    const at::Tensor given = gradients[0];
    run_plainly(roots_of({y}), gradients);
    EXPECT_FALSE(a.grad().is_alias_of(b.grad()));
    EXPECT_FALSE(a.grad().is_alias_of(given));
    EXPECT_THAT(a.grad(), EqualsBitwise(torch::full({4}, 3.0 * call)));
    EXPECT_THAT(b.grad(), EqualsBitwise(torch::full({4}, 3.0 * call)));
    EXPECT_THAT(given, EqualsBitwise(torch::full({1, 4}, 3.0)));
  }
}

// A leaf's .grad must not be a view. A view would keep the whole larger gradient in memory. A hook
// could not write into a view with repeated elements.
TEST(LocalBackward, GradientsOfLeavesHaveNoMoreMemoryThanTheyNeed) {
  const at::Tensor w = torch::randn({3, 4}).requires_grad_();
  const at::Tensor p = torch::randn({2, 3}).requires_grad_();
  const at::Tensor repeated = torch::randn({3}).requires_grad_();
  repeated.register_hook([](const at::Tensor& gradient) { gradient.mul_(3); });
  const at::Tensor y = torch::cat({torch::randn({5, 4}).matmul(w.t()), p});
  const at::Tensor sum = repeated.sum();
  variable_list gradients = ones_for({y, sum});
  run_plainly(roots_of({y, sum}), gradients);
  EXPECT_THAT(repeated.grad(), EqualsBitwise(torch::full({3}, 3.0)));
  for (const at::Tensor& leaf : {w, p, repeated}) {
    EXPECT_EQ(leaf.grad().storage().nbytes(), leaf.nbytes());
    EXPECT_EQ(leaf.grad().storage().use_count(), 1);
  }
}

TEST(LocalBackward, NeitherDoesAHookBringThemTogether) {
  const at::Tensor a = torch::randn({4}).requires_grad_();
  at::Tensor kept = torch::ones({4});
  a.register_hook([&](const at::Tensor&) { return kept.view({4}); });
  const at::Tensor y = a.exp();
  variable_list gradients = ones_for({y});
  run_plainly(roots_of({y}), gradients);
  EXPECT_FALSE(a.grad().is_alias_of(kept));
}

TEST(LocalBackward, ReachesTheSinksItIsGivenAndNoOther) {
  auto mine = make_node<GradientSink>();
  auto other = make_node<GradientSink>();
  at::Tensor x = torch::ones({2});
  at::Tensor hidden = torch::ones({2});
  mine->attach(x);
  other->attach(hidden);
  const at::Tensor w = torch::ones({2}).requires_grad_();
  WalkSettings settings;
  settings.sinks = {mine.get()};
  variable_list gradients = ones_for({x});
  run_plainly(roots_of({x * 2 * w}), gradients, settings);
  EXPECT_THAT(mine->gradients()[0], EqualsBitwise(torch::full({2}, 2.0)));
  w.mutable_grad() = at::Tensor();
  gradients = ones_for({x});
  EXPECT_THROW(run_plainly(roots_of({x * hidden * w}), gradients, settings), c10::Error);
  EXPECT_FALSE(w.grad().defined()) << "nothing ran";
  EXPECT_TRUE(other->gradients().empty());
}

// Adds up all leaves' gradients in one tensor.
class OneSum : public WalkVisitor {
 public:
  explicit OneSum(at::Tensor& sum) : sum_(sum) {}
  at::Tensor* sum_of(const NodePtr&, const at::Tensor&) override { return &sum_; }

 private:
  at::Tensor& sum_;
};

// A leaf's terms add up over two backwards as they do in one, bit for bit.
TEST(LocalBackward, SumsOfALeafGoOnFromOneBackwardToTheNext) {
  testing::manual_seed(5);
  const at::Tensor w = torch::randn({5, 5}).requires_grad_();
  const at::Tensor x = torch::randn({5, 5});
  auto first = [&] { return (w * 1.1).sin() + (x * w) * 0.7; };
  auto last = [&](const at::Tensor& y) { return (y.matmul(w) * w.cos()).tanh(); };
  (last(first())).sum().backward();
  const at::Tensor want = w.grad();
  w.mutable_grad() = at::Tensor();

  auto sink = make_node<GradientSink>();
  const at::Tensor y = first();
  at::Tensor cut = y.detach().clone();
  sink->attach(cut);
  at::Tensor sum;
  OneSum visitor(sum);
  visitor.settings.sinks = {sink.get()};
  variable_list gradients = {torch::ones({})};
  run_local_backward(roots_of({last(cut).sum()}), gradients, visitor);
  EXPECT_FALSE(w.grad().defined());
  edge_list roots = {torch::autograd::impl::gradient_edge(w)};
  gradients = {sum};
  roots.push_back(torch::autograd::impl::gradient_edge(y));
  gradients.push_back(sink->gradients()[0]);
  sum = at::Tensor();
  run_plainly(roots, gradients);
  EXPECT_THAT(w.grad(), EqualsBitwise(want));
}

// --- Users' code that writes into the gradients that it is given. LibTorch may give several nodes
// the same gradient, so a node that runs later sees what was written.

at::Tensor tripled(const at::Tensor& x) {
  x.register_hook([](const at::Tensor& gradient) { gradient.mul_(3); });
  return x;
}

struct TripleInPlace : torch::autograd::Function<TripleInPlace> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    gradients[0].mul_(3);
    return gradients;
  }
};

// A function of two values. Its backward writes into the gradient that it is given, and returns the
// same memory as the gradient of both values.
struct TripleForTwo : torch::autograd::Function<TripleForTwo> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor& y) {
    return x + y;
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    gradients[0].mul_(3);
    return {gradients[0], gradients[0].view_as(gradients[0])};
  }
};

TEST(WritingHooks, BesideProductsThatWaitForTheirWeights) {
  for (const bool hooked_first : {true, false}) {
    SCOPED_TRACE(hooked_first);
    expect_same_as_engine([&](const Leaves& x) {
      const at::Tensor ones = torch::ones({5, 5});
      at::Tensor other;
      if (!hooked_first) other = ones.matmul(x[2]);
      const at::Tensor y = tripled(x[0].matmul(x[1]));
      if (hooked_first) other = ones.matmul(x[2]);
      return Leaves{y + other};
    });
  }
}

// The waiting nodes are either reached through views and made last, or reached directly and made
// first. If they are made first and reached through views, the bits may differ:
// docs/guide/17-same-training.md lists this exception.
TEST(WritingHooks, BesideLeavesThatWait) {
  expect_same_as_engine([&](const Leaves& x) {
    const at::Tensor y = tripled(x[0].matmul(x[1]).tanh());
    const at::Tensor other = x[2].exp() * x[3];
    return Leaves{y + other.t().t() + x[2]};
  });
  expect_same_as_engine([&](const Leaves& x) {
    const at::Tensor other = x[2].exp() * x[3];
    const at::Tensor y = tripled(x[0].matmul(x[1]).tanh());
    return Leaves{y + other + x[2]};
  });
}

TEST(WritingHooks, OnViewsAndSlicesOfOneGradient) {
  expect_same_as_engine([](const Leaves& x) {
    const at::Tensor y = x[0].matmul(x[1]);
    const at::Tensor part = tripled(y.narrow(0, 1, 3));
    return Leaves{torch::cat({part, tripled(y.t()).narrow(0, 0, 2)}) + x[2].matmul(x[3])};
  });
  expect_same_as_engine([](const Leaves& x) {
    const at::Tensor rows = tripled(x[0] * 2).unsqueeze(0);
    return Leaves{rows.expand({3, 5, 5}) * 1 + tripled(x[1].matmul(x[2])) + x[3].unsqueeze(0)};
  });
}

TEST(WritingHooks, SeveralOnTheWay) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor y = tripled(x[0].matmul(x[1]));
    y = tripled(y + x[2].matmul(x[3]));
    y = tripled(y.view({25}).view({5, 5}));
    return Leaves{y + torch::ones({5, 5}).matmul(x[3]) + x[2].matmul(x[1])};
  });
}

TEST(WritingHooks, OnTheRootAndOnWhatIsUsedTwice) {
  expect_same_as_engine([](const Leaves& x) {
    const at::Tensor y = tripled(x[0].matmul(x[1]));
    return Leaves{tripled(y + x[2].matmul(x[1]) + y), x[3].matmul(x[1])};
  });
}

// The hook is on a computed weight, so its node leads only to weights. The results must be those of
// the engine all the same.
TEST(WritingHooks, OnAComputedWeight) {
  for (const bool hooked_first : {true, false}) {
    SCOPED_TRACE(hooked_first);
    expect_same_as_engine([&](const Leaves& x) {
      at::Tensor other;
      if (!hooked_first) other = x[0] * 2;
      const at::Tensor computed = tripled(x[1] * 2);
      if (hooked_first) other = x[0] * 2;
      return Leaves{other + computed + x[2].matmul(tripled(x[3].t()))};
    });
  }
}

TEST(WritingFunctions, FirstLastAndBetween) {
  expect_same_as_engine([](const Leaves& x) {
    const at::Tensor y = TripleInPlace::apply(x[0].matmul(x[1]) + x[2].matmul(x[1]));
    return Leaves{y + x[3]};
  });
  expect_same_as_engine([](const Leaves& x) {
    return Leaves{TripleInPlace::apply(x[0].matmul(x[1]) + x[2]), x[3].matmul(x[1])};
  });
  expect_same_as_engine([](const Leaves& x) {
    const at::Tensor y = TripleInPlace::apply(x[0] * 1);
    return Leaves{y.matmul(x[1]) + y + x[2].matmul(x[3])};
  });
}

TEST(WritingFunctions, ThatGiveTwoValuesTheSameGradient) {
  expect_same_as_engine([](const Leaves& x) {
    const at::Tensor y =
        TripleForTwo::apply(tripled(x[0].matmul(x[1])), x[2].matmul(x[3]) + x[1] * 1);
    return Leaves{y + x[3].matmul(x[1])};
  });
}

TEST(WritingFunctions, InAnomalyMode) {
  torch::autograd::DetectAnomalyGuard anomaly;
  expect_same_as_engine([](const Leaves& x) {
    const at::Tensor y = TripleInPlace::apply(x[0].matmul(x[1]));
    return Leaves{y + torch::ones({5, 5}).matmul(x[2]) + x[3]};
  });
}

// A hook of a leaf that writes into its gradient changes only the leaf's gradient. In the engine it
// would also write into other gradients that share the memory.
TEST(WritingHooks, OfALeafChangeTheLeafsGradientAlone) {
  for (const bool split : {false, true}) {
    SCOPED_TRACE(split);
    auto sink = make_node<GradientSink>();
    at::Tensor input = torch::zeros({2, 2});
    sink->attach(input);
    const at::Tensor p = torch::zeros({2, 2}).requires_grad_();
    p.register_hook([](const at::Tensor& gradient) { gradient.mul_(3); });
    WalkVisitor visitor;
    visitor.settings.sinks = {sink.get()};
    for (int call = 1; call <= 2; ++call) {
      const at::Tensor y = input + p;
      variable_list gradients = ones_for({y});
      const at::Tensor given = gradients[0];
      if (split) {
        run_input_backward(roots_of({y}), gradients, visitor).run(visitor);
      } else {
        run_local_backward(roots_of({y}), gradients, visitor);
      }
      EXPECT_THAT(p.grad(), EqualsBitwise(torch::full({2, 2}, 3.0 * call)));
      EXPECT_THAT(sink->gradients()[0], EqualsBitwise(torch::ones({2, 2})));
      EXPECT_THAT(given, EqualsBitwise(torch::ones({2, 2})));
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
