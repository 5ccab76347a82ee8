#include "skip/skippable.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "skip/testing.h"

namespace gpipe::skip {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Names;
using testing::Nest;
using testing::Pair;
using testing::plain_layer;
using testing::pop_layer;
using testing::SkipLayer;
using testing::stash_layer;
using torch::nn::Sequential;

template <typename E = c10::Error, typename F>
std::string error_of(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

at::Tensor number(double value) { return at::full({1}, value); }

TEST(SkippableTest, StashPutsOneEntryIntoTheCurrentTracker) {
  Tracker tracker;
  TrackerScope scope(tracker);
  stash_layer({"skip"})->forward(number(1));
  EXPECT_EQ(tracker.size(), 1u);
  EXPECT_TRUE(tracker.contains({Namespace::common(), "skip"}));
}

TEST(SkippableTest, PopGivesBackWhatWasStashed) {
  Scope scope;
  stash_layer({"skip"})->forward(number(42));
  EXPECT_EQ(pop_layer({"skip"})->forward(number(0)).item<float>(), 42);
  scope.finish();
}

TEST(SkippableTest, UndeclaredNamesAreRefusedAtOnce) {
  Scope scope;
  auto layer = stash_layer({"declared"});
  layer->to_stash = {"other"};
  EXPECT_THAT(error_of([&] { layer->forward(number(1)); }),
              AllOf(HasSubstr("stashes 'other'"), HasSubstr("does not declare"),
                    HasSubstr("now 'declared'")));
  layer = pop_layer({});
  layer->to_pop = {"other"};
  EXPECT_THAT(error_of([&] { layer->forward(number(1)); }),
              AllOf(HasSubstr("pops 'other'"), HasSubstr("does not declare"), HasSubstr("none")));
}

TEST(SkippableTest, PopOfWhatNobodyStashedIsAnError) {
  Scope scope;
  EXPECT_THAT(error_of([] { pop_layer({"skip"})->forward(number(1)); }),
              AllOf(HasSubstr("'skip'"), HasSubstr("not stashed")));
}

TEST(SkippableTest, AnUndefinedTensorArrivesAsSuch) {
  Scope scope;
  auto stash = stash_layer({"skip"});
  stash->forward(at::Tensor());
  EXPECT_EQ(pop_layer({"skip"})->forward(number(3)).item<float>(), 3);
}

TEST(SkippableTest, WorksInAPlainSequentialWithGradients) {
  const Namespace ns;
  Sequential model(stash_layer({"skip"}), isolate(stash_layer({"skip"}), ns), plain_layer(),
                   isolate(pop_layer({"skip"}), ns), pop_layer({"skip"}));
  auto x = number(2).requires_grad_();
  auto y = model->forward(x);
  EXPECT_EQ(y.item<float>(), 6);
  y.backward();
  EXPECT_EQ(x.grad().item<float>(), 3);
}

TEST(SkippableTest, WorksNestedInAPlainSequential) {
  Sequential model(Nest(plain_layer(), stash_layer({"skip"})), plain_layer(),
                   Nest(plain_layer(), Nest(plain_layer(), pop_layer({"skip"}))));
  Scope scope;
  EXPECT_EQ(model->forward(number(2)).item<float>(), 4);
  scope.finish();
}

TEST(SkippableTest, TwoThreadsDoNotDisturbEachOther) {
  Sequential model(stash_layer({"skip"}), plain_layer(), pop_layer({"skip"}));
  auto run = [&model](double value, int* wrong) {
    for (int i = 0; i < 2000; ++i) {
      if (model->forward(number(value)).item<float>() != 2 * value) ++*wrong;
    }
  };
  int wrong_a = 0, wrong_b = 0;
  std::thread a(run, 1.0, &wrong_a), b(run, 2.0, &wrong_b);
  a.join();
  b.join();
  EXPECT_EQ(wrong_a, 0);
  EXPECT_EQ(wrong_b, 0);
}

struct FailImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor&) { throw std::runtime_error("layer failed"); }
};
TORCH_MODULE(Fail);

TEST(SkippableTest, AFailedForwardInAScopeLeavesNothingBehind) {
  Tracker::current().clear();
  Sequential model(stash_layer({"skip"}), Fail(), pop_layer({"skip"}));
  auto x = number(1);
  EXPECT_THROW(
      {
        Scope scope;
        model->forward(x);
      },
      std::runtime_error);
  EXPECT_EQ(Tracker::current().size(), 0u);
  EXPECT_EQ(x.use_count(), 1u);
}

TEST(SkippableTest, AForwardAfterAFailedOneIsRightWithoutAScopeToo) {
  Tracker::current().clear();
  Sequential failing(stash_layer({"skip"}), Fail());
  EXPECT_THROW(failing->forward(number(100)), std::runtime_error);
  Sequential model(stash_layer({"skip"}), pop_layer({"skip"}));
  EXPECT_EQ(model->forward(number(1)).item<float>(), 2);
  EXPECT_EQ(Tracker::current().size(), 0u);
}

TEST(SkippableTest, ShowsWhatItDeclares) {
  SkipLayer layer(Names{"a", "b"}, Names{"c"});
  EXPECT_THAT(layer->stashes(), ElementsAre("a", "b"));
  EXPECT_THAT(layer->pops(), ElementsAre("c"));
  EXPECT_EQ(layer->to_text(), "Skippable(stash: 'a', 'b'; pop: 'c')");
  EXPECT_EQ(plain_layer()->to_text(), "Skippable()");
  EXPECT_EQ(layer->key("b"), (Key{Namespace::common(), "b"}));
  EXPECT_EQ(layer->key("c"), (Key{Namespace::common(), "c"}));
}

TEST(SkippableTest, IsolateMovesAllOrSomeNamesAndTheLaterCallWins) {
  SkipLayer layer(Names{"a", "b"}, Names{"c"});
  const Namespace first, second;
  layer->isolate(first);
  layer->isolate(second, {"b", "c"});
  EXPECT_EQ(layer->key("a").ns, first);
  EXPECT_EQ(layer->key("b").ns, second);
  EXPECT_EQ(layer->key("c").ns, second);
  layer->isolate(Namespace::common());
  EXPECT_EQ(layer->key("b").ns, Namespace::common());
}

TEST(SkippableTest, IsolateReturnsTheLayerForWhereItIsMade) {
  const Namespace first, second;
  const auto held = isolate(SkipLayer(Names{"a"}, Names{"c"}), first);
  EXPECT_EQ(held->key("a").ns, first);
  const auto pointer = isolate(stash_layer({"a", "b"}).ptr(), second, {"b"});
  EXPECT_EQ(pointer->key("a").ns, Namespace::common());
  EXPECT_EQ(pointer->key("b").ns, second);
}

TEST(SkippableTest, UnknownNamesAreRefusedAndChangeNothing) {
  SkipLayer layer(Names{"a"}, Names{"b"});
  EXPECT_THAT(error_of<c10::ValueError>([&] {
                layer->isolate(Namespace(), {"a", "nope"});
              }),
              AllOf(HasSubstr("'nope' is not a skip"), HasSubstr("stashes 'a' and pops 'b'")));
  EXPECT_EQ(layer->key("a").ns, Namespace::common());
  EXPECT_THAT(error_of<c10::ValueError>([&] { layer->key("nope"); }), HasSubstr("'nope'"));
}

TEST(SkippableTest, EmptyAndRepeatedNamesAreRefused) {
  EXPECT_THAT(error_of<c10::ValueError>([] { stash_layer({""}); }), HasSubstr("needs a name"));
  EXPECT_THAT(error_of<c10::ValueError>([] {
                pop_layer({"a", "b", "a"});
              }),
              AllOf(HasSubstr("'a' is declared twice"), HasSubstr("the pops")));
}

TEST(SkippableTest, AllSkippablesOfALayerAreFoundOnce) {
  auto a = stash_layer({"a"}), b = pop_layer({"a"}), c = plain_layer();
  Sequential layer(Pair(a, b), Fail(), Nest(c, c));
  torch::nn::Module& module = *layer;
  EXPECT_THAT(skippables_of(module), ElementsAre(a.get(), b.get(), c.get()));
  EXPECT_THAT(skippables_of(*a), ElementsAre(a.get()));
  EXPECT_TRUE(skippables_of(*Fail()).empty());
}

}  // namespace
}  // namespace gpipe::skip
