#include "skip/call.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <string>

#include "skip/testing.h"

namespace gpipe::skip {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Names;
using testing::Nest;
using ::testing::Not;
using testing::Pair;
using testing::plain_layer;
using testing::pop_layer;
using testing::SkipLayer;
using testing::stash_layer;
using torch::nn::Sequential;

// Calls the layer as a runner does. Returns the text of the error, or "no error".
template <typename Layer>
std::string call(Layer layer, const Names& arriving = {}) {
  Tracker tracker;
  for (const auto& name : arriving) tracker.stash({Namespace::common(), name}, at::ones({1}));
  const CallPlan plan(*layer);
  try {
    TrackerScope tracker_scope(tracker);
    CallScope scope(plan);
    layer->forward(at::ones({1}));
    scope.finish();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(CallScopeTest, ACallThatDoesWhatItDeclaresPasses) {
  EXPECT_EQ(call(SkipLayer(Names{"a", "b"}, Names{"c"}), {"c"}), "no error");
  EXPECT_EQ(call(plain_layer()), "no error");
}

TEST(CallScopeTest, DeclaredButNeverStashedOrPoppedIsAnErrorThatListsTheNames) {
  SkipLayer layer(Names{"a", "b", "c"}, Names{"d", "e"});
  layer->to_stash = {"b"};
  layer->to_pop = {"e"};
  EXPECT_THAT(call(layer, {"d", "e"}),
              AllOf(HasSubstr("'a' is declared to be stashed, but was not"),
                    HasSubstr("'c' is declared to be stashed, but was not"),
                    HasSubstr("'d' is declared to be popped, but was not"), Not(HasSubstr("'b'")),
                    Not(HasSubstr("'e'"))));
}

TEST(CallScopeTest, UsingANameTwiceInACallIsAnError) {
  auto stash = stash_layer({"a"});
  stash->to_stash = {"a", "a"};
  EXPECT_THAT(call(stash), HasSubstr("'a' is stashed twice in one call"));
  auto pop = pop_layer({"a"});
  pop->to_pop = {"a", "a"};
  EXPECT_THAT(call(pop, {"a"}), HasSubstr("'a' is popped twice in one call"));
}

TEST(CallScopeTest, APlanServesManyCalls) {
  auto layer = stash_layer({"a"});
  const CallPlan plan(*layer);
  EXPECT_FALSE(plan.empty());
  Tracker tracker;
  TrackerScope tracker_scope(tracker);
  for (int i = 0; i < 3; ++i) {
    CallScope scope(plan);
    layer->forward(at::ones({1}));
    scope.finish();
  }
  EXPECT_EQ(tracker.size(), 1u);
}

TEST(CallScopeTest, ANestedLayerThatDidNotRunIsNotMissed) {
  auto second = stash_layer({"b"});
  second->to_stash = {};
  EXPECT_EQ(call(Nest(stash_layer({"a"}), second)), "no error");
}

TEST(CallScopeTest, ANestedLayerThatDidHalfIsNamed) {
  auto nested = stash_layer({"a", "b"});
  nested->to_stash = {"a"};
  EXPECT_THAT(call(Nest(plain_layer(), nested)),
              HasSubstr("'b' is declared to be stashed by its submodule 1, but was not"));
}

struct HidingImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return hidden->forward(std::move(x)); }
  SkipLayer hidden = stash_layer({"a"});  // not registered
};
TORCH_MODULE(Hiding);

TEST(CallScopeTest, ASkippableThatIsNotARegisteredSubmoduleIsAnError) {
  EXPECT_TRUE(CallPlan(*Hiding()).empty());
  EXPECT_THAT(call(Hiding()), AllOf(HasSubstr("register_module"), HasSubstr("stash: 'a'")));
}

TEST(CallScopeTest, ATrackerScopeInsideHidesTheCall) {
  auto outer = plain_layer();
  const CallPlan plan(*outer);
  CallScope scope(plan);
  {
    Scope inside;
    Sequential(stash_layer({"a"}), pop_layer({"a"}))->forward(at::ones({1}));
    inside.finish();
  }
  EXPECT_THROW(stash_layer({"a"})->forward(at::ones({1})), c10::Error);
  scope.finish();
}

TEST(CallPlanTest, TellsOfSkipsThatWereMovedAfterItWasMade) {
  auto inner = pop_layer({"c"});
  Pair pair(SkipLayer(Names{"a", "b"}, Names{}), inner);
  const CallPlan plan(*pair);
  EXPECT_EQ(plan.moved_skip(), std::nullopt);
  EXPECT_EQ(CallPlan(*torch::nn::Identity()).moved_skip(), std::nullopt);

  const Namespace ns;
  const std::string now = " is now 'c' (namespace " + std::to_string(ns.id()) + ")";
  inner->isolate(ns);
  EXPECT_EQ(plan.moved_skip(), "skip 'c' of its submodule second" + now);
  pair->first->isolate(ns, {"b"});
  EXPECT_THAT(plan.moved_skip().value(), HasSubstr("skip 'b' of its submodule first is now 'b' ("));
  inner->isolate(Namespace::common());
  pair->first->isolate(Namespace::common());
  EXPECT_EQ(plan.moved_skip(), std::nullopt);
}

TEST(CallScopeTest, NothingIsLeftAfterACallThatThrew) {
  auto layer = stash_layer({"a"});
  layer->to_stash = {"undeclared"};
  EXPECT_THAT(call(layer), HasSubstr("'undeclared'"));
  Scope scope;
  // This forward would throw if the call that threw were still observed.
  stash_layer({"a"})->forward(at::ones({1}));
  EXPECT_EQ(Tracker::current().size(), 1u);
}

}  // namespace
}  // namespace gpipe::skip
