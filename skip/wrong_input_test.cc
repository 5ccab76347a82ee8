// Gives wrong input to every public function of the package. Each must throw what its header says,
// with a message that says what was given and what to do, and the state must be as before the call.
#include "tools/testing/wrong_input.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "skip/call.h"
#include "skip/layout.h"
#include "skip/skip.h"
#include "skip/testing.h"

namespace gpipe::skip {
namespace {

using testing::Names;
using testing::Nest;
using testing::plain_layer;
using testing::pop_layer;
using testing::SkipLayer;
using testing::stash_layer;
using torch::nn::Sequential;

using Row = gpipe::testing::WrongInput<>;
using Rows = std::vector<Row>;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

Row value_error(std::string name, std::function<void()> call, std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(c10::ValueError), std::move(parts)};
}
Row error(std::string name, std::function<void()> call, std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(c10::Error), std::move(parts)};
}

class WrongInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(WrongInputTest, IsRefusedAndTheThreadsTableIsAsItWas) {
  const Key key{Namespace::common(), "waiting"};
  const at::Tensor waiting = at::ones({1});
  Tracker tracker;
  TrackerScope scope(tracker);
  tracker.stash(key, waiting);
  gpipe::testing::expect_refused(GetParam());
  EXPECT_EQ(&Tracker::current(), &tracker);
  EXPECT_EQ(tracker.to_text(), "'waiting'");
  EXPECT_TRUE(tracker.pop(key).is_same(waiting));
  // The refused call is no longer observed, so a layer may stash a name again.
  auto layer = stash_layer({"a"});
  layer->to_stash = {"a", "a"};
  EXPECT_NO_THROW(layer->forward(waiting));
}

// --- Skippable

Row declared(std::string name, Names stashes, Names pops, std::vector<std::string> parts) {
  return value_error(
      std::move(name), [=] { SkipLayer layer(stashes, pops); }, std::move(parts));
}

Rows constructor() {
  return {
      declared("EmptyStash", {""}, {}, {"needs a name", "empty one", "the stashes ('')"}),
      declared("EmptyPop", {}, {""}, {"needs a name", "empty one", "the pops ('')"}),
      declared("EmptyAmongOthers", {"a", "", "b"}, {}, {"empty one", "('a', '', 'b')"}),
      declared("EmptyInBoth", {""}, {""}, {"needs a name", "the stashes"}),
      declared("StashTwice", {"a", "a"}, {}, {"'a' is declared twice", "the stashes", "once"}),
      declared("PopTwice", {}, {"a", "b", "a"}, {"'a' is declared twice", "the pops", "once"}),
  };
}

INSTANTIATE_TEST_SUITE_P(SkippableConstructor, WrongInputTest, ::testing::ValuesIn(constructor()),
                         gpipe::testing::row_name);

Rows names() {
  const auto layer = [] { return SkipLayer(Names{"a"}, Names{"b"}); };
  const std::vector<std::string> unknown = {"'c' is not a skip of this layer", "stashes 'a'",
                                            "pops 'b'"};
  const auto use = [](Names to_stash, Names to_pop) {
    return [=] {
      SkipLayer layer(Names{"a"}, Names{"b"});
      layer->to_stash = to_stash;
      layer->to_pop = to_pop;
      layer->forward(at::ones({1}));
    };
  };
  return {
      value_error(
          "KeyUndeclared", [=] { layer()->key("c"); }, unknown),
      value_error("KeyEmpty", [=] { layer()->key(""); }, {"'' is not a skip of this layer"}),
      value_error("KeyOfALayerWithoutSkips", [] { plain_layer()->key("a"); },
                  {"'a' is not a skip", "stashes none and pops none"}),
      value_error(
          "IsolateUndeclared", [=] { layer()->isolate(Namespace(), {"c"}); }, unknown),
      value_error("IsolateEmpty", [=] { layer()->isolate(Namespace(), {""}); },
                  {"'' is not a skip of this layer"}),
      value_error(
          "IsolateOneOfTwoUndeclared",
          [=] {
            auto kept = layer();
            try {
              kept->isolate(Namespace(), {"a", "c"});
            } catch (...) {
              EXPECT_EQ(kept->key("a").ns, Namespace::common());
              throw;
            }
          },
          unknown),
      error("StashUndeclared", use({"c"}, {}),
            {"stashes 'c'", "does not declare", "add it to the stashes", "now 'a'"}),
      error("StashEmpty", use({""}, {}), {"stashes ''", "does not declare"}),
      error("StashWhatIsPopped", use({"b"}, {}), {"stashes 'b'", "does not declare", "now 'a'"}),
      error("PopUndeclared", use({}, {"c"}),
            {"pops 'c'", "does not declare", "add it to the pops", "now 'b'"}),
      error("PopEmpty", use({}, {""}), {"pops ''", "does not declare"}),
      error("PopWhatIsStashed", use({}, {"a"}), {"pops 'a'", "does not declare", "now 'b'"}),
      error(
          "PopOfNothing", use({}, {"b"}),
          {"'b' is not stashed", "A layer that runs earlier must stash", "waiting are: 'waiting'"}),
      error("PopInAnotherNamespace",
            [] {
              Scope scope;
              Sequential(stash_layer({"a"}), isolate(pop_layer({"a"}), Namespace()))
                  ->forward(at::ones({1}));
            },
            {"'a' (namespace ", "is not stashed", "same namespace", "waiting are: 'a'."}),
      error("PopTwice",
            [] {
              Scope scope;
              auto pop = pop_layer({"a"});
              pop->to_pop = {"a", "a"};
              Sequential(stash_layer({"a"}), pop)->forward(at::ones({1}));
            },
            {"'a' is not stashed", "popped already", "waiting are: none"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Skippable, WrongInputTest, ::testing::ValuesIn(names()),
                         gpipe::testing::row_name);

// Hole has a null pointer as a submodule. with_hole() returns a model with a null pointer as a
// layer.
struct HoleImpl : torch::nn::Module {
  HoleImpl() { register_module("hole", std::shared_ptr<torch::nn::LinearImpl>()); }
  at::Tensor forward(at::Tensor x) { return x; }
};
TORCH_MODULE(Hole);

Sequential with_hole() {
  Sequential model(plain_layer());
  model->push_back(std::shared_ptr<torch::nn::LinearImpl>());
  return model;
}

// A container that has skips of its own and is not called.
struct SkippableSequentialImpl : torch::nn::SequentialImpl, Skippable {
  SkippableSequentialImpl(Names stashes, Names pops)
      : Skippable(std::move(stashes), std::move(pops)) {}
};

Sequential skippable_model(Names stashes, Names pops, SkipLayer layer) {
  auto model = std::make_shared<SkippableSequentialImpl>(std::move(stashes), std::move(pops));
  model->push_back(std::move(layer));
  return Sequential(std::shared_ptr<torch::nn::SequentialImpl>(std::move(model)));
}

Rows trackers() {
  const auto call = [](SkipLayer layer) {
    const CallPlan plan(*layer);
    CallScope scope(plan);
    layer->forward(at::ones({1}));
    scope.finish();
  };
  const Key key{Namespace::common(), "a"};
  return {
      error("PopOfAnEmptyTracker", [=] { Tracker().pop(key); },
            {"'a' is not stashed", "waiting are: none"}),
      error("PopOfAnEmptyName",
            [] {
              Tracker().pop({Namespace::common(), ""});
            },
            {"'' is not stashed"}),
      error("PopOfTheOnlyOneTwice",
            [=] {
              Tracker tracker;
              tracker.stash(key, at::Tensor());
              tracker.pop(key);
              tracker.pop(key);
            },
            {"'a' is not stashed", "popped already"}),
      error("ScopeWithWhatIsNeverPopped",
            [] {
              Scope scope;
              Sequential(stash_layer({"b", "a"}))->forward(at::ones({1}));
              scope.finish();
            },
            {"never popped: 'a', 'b'", "later layer pop"}),
      error("CallThatStashesTwice",
            [=] {
              Scope own;
              auto layer = stash_layer({"a"});
              layer->to_stash = {"a", "a"};
              call(layer);
            },
            {"'a' is stashed twice in one call", "declare a second name"}),
      error("CallThatStashesNothing",
            [=] {
              auto layer = stash_layer({"a"});
              layer->to_stash = {};
              call(layer);
            },
            {"'a' is declared to be stashed, but was not", "use each declared name once"}),
      error("CallThatPopsNothing",
            [=] {
              auto layer = pop_layer({"a"});
              layer->to_pop = {};
              call(layer);
            },
            {"'a' is declared to be popped, but was not", "use each declared name once"}),
      error("CallOfALayerThatIsNotInThePlan",
            [] {
              SkipLayer layer = plain_layer();  // outlives the plan, which points into it
              const CallPlan plan(*layer);
              CallScope scope(plan);
              stash_layer({"a"})->forward(at::ones({1}));
            },
            {"stash: 'a'", "registered submodules", "register_module"}),
      value_error("PlanOfALayerWithAHole", [] { CallPlan plan(*Hole()); },
                  {"submodule 'hole'", "null pointer", "register a module"}),
      value_error("SkippablesOfALayerWithAHole", [] { skippables_of(*Nest(Hole())); },
                  {"submodule '0.hole'", "null pointer", "register a module"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Tracker, WrongInputTest, ::testing::ValuesIn(trackers()),
                         gpipe::testing::row_name);

// --- verify_skippables and Layout::inspect. Layout::inspect also refuses what verify_skippables
// refuses.

struct Model {
  std::string name;
  Sequential model;
  std::type_index type;
  std::vector<std::string> parts;
};

std::vector<Model> unpaired() {
  const auto type = std::type_index(typeid(c10::TypeError));
  const auto value = std::type_index(typeid(c10::ValueError));
  const Namespace ns;
  auto twice = stash_layer({"a"});
  return {
      {"EmptyHolder", Sequential(nullptr), value, {"needs a Sequential", "empty holder"}},
      {"NullLayer", with_hole(), value, {"submodule '1'", "null pointer", "leave it out"}},
      {"NullWithinALayer", Sequential(Hole()), value, {"submodule '0.hole'", "null pointer"}},
      {"NeverPopped",
       Sequential(stash_layer({"a"})),
       type,
       {"child 0 stashes 'a', which no layer pops", "Each name must be stashed by one layer"}},
      {"NeverStashed",
       Sequential(plain_layer(), pop_layer({"a"})),
       type,
       {"child 1 pops 'a', which no layer stashes", "Each name must be stashed by one layer"}},
      {"PoppedFirst",
       Sequential(pop_layer({"a"}), stash_layer({"a"})),
       type,
       {"child 0 pops 'a' before child 1 stashes it"}},
      {"StashedAgain",
       Sequential(stash_layer({"a"}), stash_layer({"a"}), pop_layer({"a"})),
       type,
       {"child 1 stashes 'a' again, which child 0 stashes already", "isolate()"}},
      {"PoppedAgain",
       Sequential(stash_layer({"a"}), pop_layer({"a"}), pop_layer({"a"})),
       type,
       {"child 2 pops 'a' again, which child 1 pops already", "isolate()"}},
      {"SecondPairOfOneName",
       Sequential(stash_layer({"a"}), pop_layer({"a"}), stash_layer({"a"}), pop_layer({"a"})),
       type,
       {"child 2 stashes 'a' again", "child 3 pops 'a' again", "isolate()"}},
      {"BothInOneLayer",
       Sequential(SkipLayer(Names{"a"}, Names{"a"})),
       type,
       {"child 0 both stashes and pops 'a'"}},
      {"OneEndIsolated",
       Sequential(isolate(stash_layer({"a"}), ns), pop_layer({"a"})),
       type,
       {"child 0 stashes 'a' (namespace ", "child 1 pops 'a', which no layer stashes"}},
      {"IsolatedApart",
       Sequential(isolate(stash_layer({"a"}), Namespace()), isolate(pop_layer({"a"}), Namespace())),
       type,
       {"child 0 stashes 'a' (namespace ", "child 1 pops 'a' (namespace "}},
      {"TheSameLayerTwice",
       Sequential(twice, twice, pop_layer({"a"})),
       type,
       {"child 1 stashes 'a' again, which child 0 stashes already"}},
      {"NestedNeverPopped",
       Sequential(plain_layer(), Nest(plain_layer(), stash_layer({"a"}))),
       type,
       {"child 1.1 stashes 'a', which no layer pops"}},
      {"TheModelItselfStashes",
       skippable_model({"a"}, {}, pop_layer({"a"})),
       type,
       {"the model itself is a layer with skips", "give the skips to one of them"}},
      {"TheModelItselfPops",
       skippable_model({}, {"a"}, stash_layer({"a"})),
       type,
       {"the model itself is a layer with skips", "give the skips to one of them"}},
  };
}

Rows models() {
  Rows rows;
  for (const Model& m : unpaired()) {
    rows.push_back({"Verify" + m.name, [=] { verify_skippables(m.model); }, m.type, m.parts});
    rows.push_back({"Inspect" + m.name, [=] { Layout::inspect(m.model, {1}); }, m.type, m.parts});
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Model, WrongInputTest, ::testing::ValuesIn(models()),
                         gpipe::testing::row_name);

Row balance(std::string name, std::vector<int64_t> given, std::vector<std::string> parts) {
  return value_error(
      std::move(name),
      [=] { Layout::inspect(Sequential(stash_layer({"a"}), pop_layer({"a"})), given); },
      std::move(parts));
}

Rows balances() {
  return {
      balance("Empty", {}, {"{} has 0 layers and the model 2", "sum up"}),
      balance("TooSmall", {1}, {"{1} has 1 layers and the model 2", "sum up"}),
      balance("TooLarge", {1, 2}, {"{1, 2} has more layers than the model (2)", "sum up"}),
      balance("TooMany", {1, 1, 1}, {"{1, 1, 1} has more layers than the model (2)"}),
      balance("ZeroFirst", {0, 2}, {"block 0 of {0, 2} has 0", "at least one layer"}),
      balance("ZeroLast", {2, 0}, {"block 1 of {2, 0} has 0", "at least one layer"}),
      balance("Negative", {-1, 3}, {"block 0 of {-1, 3} has -1", "at least one layer"}),
      balance("Least", {kMin}, {"block 0 of {-9223372036854775808}", "at least one layer"}),
      balance("Most", {kMax}, {"{9223372036854775807} has more layers than the model (2)"}),
      balance("SumOverflowsToTheRightOne", {kMax, kMax, 4}, {"has more layers than the model (2)"}),
      balance("SumOverflowsBehindAGoodBlock", {1, kMax, kMax}, {"has more layers"}),
      value_error("OfAModelWithoutLayers", [] { Layout::inspect(Sequential(), {1}); },
                  {"{1} has more layers than the model (0)"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Balance, WrongInputTest, ::testing::ValuesIn(balances()),
                         gpipe::testing::row_name);

// --- Calls that look wrong but are accepted

TEST(OddInputTest, NothingDeclaredIsNothingToCheck) {
  EXPECT_NO_THROW(verify_skippables(Sequential()));
  EXPECT_TRUE(Layout::inspect(Sequential(), {}).edges().empty());
  EXPECT_TRUE(CallPlan(*torch::nn::Linear(1, 1)).empty());
  EXPECT_NO_THROW(Scope().finish());
}

TEST(OddInputTest, IsolatingNoNamesOrALayerWithoutNamesChangesNothing) {
  auto layer = stash_layer({"a"});
  layer->isolate(Namespace(), {});
  EXPECT_EQ(layer->key("a").ns, Namespace::common());
  EXPECT_NO_THROW(plain_layer()->isolate(Namespace()));
  layer->isolate(Namespace());
  layer->isolate(Namespace::common());
  EXPECT_EQ(layer->key("a").ns, Namespace::common());
}

TEST(OddInputTest, AnUndefinedTensorIsAPayload) {
  Scope scope;
  EXPECT_FALSE(Sequential(stash_layer({"a"}), pop_layer({"a"}))->forward(at::Tensor()).defined());
  scope.finish();
}

TEST(OddInputTest, ALayerMayStashAndPopOneNameOutsideAModel) {
  SkipLayer layer(Names{"a"}, Names{"a"});
  EXPECT_EQ(layer->to_text(), "Skippable(stash: 'a'; pop: 'a')");
}

}  // namespace
}  // namespace gpipe::skip
