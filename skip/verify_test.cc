#include "skip/verify.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

std::string verdict(const Sequential& model) {
  try {
    verify_skippables(model);
  } catch (const c10::TypeError& error) {
    return error.what_without_backtrace();
  }
  return "fine";
}

TEST(VerifySkippablesTest, AMatchingPairPasses) {
  EXPECT_EQ(verdict(Sequential(stash_layer({"foo"}), pop_layer({"foo"}))), "fine");
  EXPECT_EQ(verdict(Sequential(plain_layer())), "fine");
  EXPECT_EQ(verdict(Sequential()), "fine");
}

TEST(VerifySkippablesTest, StashedAndNeverPopped) {
  EXPECT_THAT(verdict(Sequential(stash_layer({"foo"}))),
              HasSubstr("child 0 stashes 'foo', which no layer pops"));
}

TEST(VerifySkippablesTest, PoppedAndNeverStashed) {
  EXPECT_THAT(verdict(Sequential(pop_layer({"foo"}))),
              HasSubstr("child 0 pops 'foo', which no layer stashes"));
}

TEST(VerifySkippablesTest, PoppedBeforeStashed) {
  EXPECT_THAT(
      verdict(Sequential(pop_layer({"foo"}), stash_layer({"foo"}))),
      AllOf(HasSubstr("child 0 pops 'foo' before child 1 stashes it"), Not(HasSubstr("no layer"))));
}

TEST(VerifySkippablesTest, StashedAgain) {
  EXPECT_THAT(verdict(Sequential(stash_layer({"foo"}), stash_layer({"foo"}), pop_layer({"foo"}))),
              HasSubstr("child 1 stashes 'foo' again, which child 0 stashes already"));
}

TEST(VerifySkippablesTest, PoppedAgain) {
  EXPECT_THAT(verdict(Sequential(stash_layer({"foo"}), pop_layer({"foo"}), pop_layer({"foo"}))),
              HasSubstr("child 2 pops 'foo' again, which child 1 pops already"));
}

TEST(VerifySkippablesTest, ALayerMayPopOneAndStashAnother) {
  EXPECT_EQ(verdict(Sequential(stash_layer({"foo"}), SkipLayer(Names{"bar"}, Names{"foo"}),
                               pop_layer({"bar"}))),
            "fine");
}

TEST(VerifySkippablesTest, ALayerMayNotStashAndPopOneName) {
  const std::string text =
      verdict(Sequential(stash_layer({"foo"}), SkipLayer(Names{"bar"}, Names{"bar"})));
  EXPECT_THAT(text, HasSubstr("child 1 both stashes and pops 'bar'"));
  EXPECT_THAT(text, HasSubstr("child 0 stashes 'foo'"));
}

TEST(VerifySkippablesTest, TwoPairsOfOneNameAreReportedTogether) {
  EXPECT_THAT(verdict(Sequential(stash_layer({"foo"}), pop_layer({"foo"}), stash_layer({"foo"}),
                                 pop_layer({"foo"}))),
              AllOf(HasSubstr("child 2 stashes 'foo' again"), HasSubstr("child 3 pops 'foo' again"),
                    HasSubstr("isolate()")));
}

TEST(VerifySkippablesTest, TwoPairsInTwoNamespacesPass) {
  const Namespace a, b;
  EXPECT_EQ(verdict(Sequential(isolate(stash_layer({"foo"}), a), isolate(pop_layer({"foo"}), a),
                               isolate(stash_layer({"foo"}), b), isolate(pop_layer({"foo"}), b))),
            "fine");
}

TEST(VerifySkippablesTest, TheCommonNamespaceMixesWithOthers) {
  const Namespace ns;
  EXPECT_EQ(verdict(Sequential(stash_layer({"foo"}), isolate(stash_layer({"foo"}), ns),
                               isolate(pop_layer({"foo"}), ns), pop_layer({"foo"}))),
            "fine");
  EXPECT_THAT(verdict(Sequential(stash_layer({"foo"}), isolate(pop_layer({"foo"}), ns))),
              AllOf(HasSubstr("child 0 stashes 'foo', which no layer pops"),
                    HasSubstr("child 1 pops 'foo' (namespace " + std::to_string(ns.id()) +
                              "), which no layer stashes")));
}

TEST(VerifySkippablesTest, NestedLayersCount) {
  EXPECT_EQ(verdict(Sequential(Nest(plain_layer(), stash_layer({"foo"})),
                               Nest(plain_layer(), Nest(plain_layer(), pop_layer({"foo"}))))),
            "fine");
  EXPECT_THAT(verdict(Sequential(plain_layer(), Nest(plain_layer(), stash_layer({"foo"})))),
              HasSubstr("child 1.1 stashes 'foo'"));
  EXPECT_THAT(verdict(Sequential(Nest(pop_layer({"foo"}), stash_layer({"foo"})))),
              HasSubstr("child 0.0 pops 'foo' before child 0.1 stashes it"));
}

TEST(VerifySkippablesTest, OneLayerInTwoPlacesStashesAgain) {
  auto stash = stash_layer({"foo"});
  EXPECT_THAT(verdict(Sequential(stash, stash, pop_layer({"foo"}))),
              HasSubstr("child 1 stashes 'foo' again"));
}

TEST(VerifySkippablesTest, OnlyAChildThatIsNotASequentialKnowsItsOrder) {
  EXPECT_EQ(verdict(Sequential(Pair(pop_layer({"foo"}), stash_layer({"foo"})))), "fine");
}

TEST(VerifySkippablesTest, NamedChildrenAreCalledByTheirNames) {
  Sequential model;
  model->push_back("encode", stash_layer({"foo"}));
  EXPECT_THAT(verdict(model), HasSubstr("child encode stashes 'foo'"));
}

TEST(VerifySkippablesTest, AnEmptyHolderIsRefused) {
  EXPECT_THROW(verify_skippables(Sequential(nullptr)), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::skip
