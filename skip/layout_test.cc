#include "skip/layout.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "skip/testing.h"

namespace gpipe::skip {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Names;
using testing::Nest;
using testing::plain_layer;
using testing::pop_layer;
using testing::SkipLayer;
using testing::stash_layer;
using torch::nn::Sequential;

Key common(const std::string& name) { return {Namespace::common(), name}; }

TEST(LayoutTest, NoSkippablesNoEdges) {
  const auto layout = Layout::inspect(Sequential(plain_layer(), plain_layer()), {1, 1});
  EXPECT_THAT(layout.edges(), IsEmpty());
  EXPECT_THAT(layout.crossing(), IsEmpty());
  EXPECT_EQ(layout.to_text(), "");
}

TEST(LayoutTest, ASkipInsideAPartitionDoesNotCross) {
  const auto layout =
      Layout::inspect(Sequential(stash_layer({"foo"}), pop_layer({"foo"}), plain_layer()), {2, 1});
  EXPECT_THAT(layout.edges(), ElementsAre(SkipEdge{common("foo"), 0, 1, 0, 0}));
  EXPECT_THAT(layout.crossing(), IsEmpty());
}

TEST(LayoutTest, AdjoiningPartitions) {
  const auto layout = Layout::inspect(Sequential(stash_layer({"foo"}), pop_layer({"foo"})), {1, 1});
  EXPECT_THAT(layout.crossing(), ElementsAre(SkipEdge{common("foo"), 0, 1, 0, 1}));
}

TEST(LayoutTest, FarPartitions) {
  const auto layout = Layout::inspect(
      Sequential(stash_layer({"foo"}), plain_layer(), pop_layer({"foo"})), {1, 1, 1});
  EXPECT_THAT(layout.crossing(), ElementsAre(SkipEdge{common("foo"), 0, 2, 0, 2}));
  EXPECT_EQ(layout.to_text(), "'foo': layer 0 (partition 0) -> layer 2 (partition 2)\n");
}

TEST(LayoutTest, TwoSkipsIntoOnePartitionAreSortedBySourceNotByPop) {
  const auto layout = Layout::inspect(Sequential(stash_layer({"foo"}), stash_layer({"bar"}),
                                                 pop_layer({"bar"}), pop_layer({"foo"})),
                                      {1, 1, 2});
  EXPECT_THAT(layout.crossing(), ElementsAre(SkipEdge{common("foo"), 0, 3, 0, 2},
                                             SkipEdge{common("bar"), 1, 2, 1, 2}));
}

TEST(LayoutTest, SameNameInTwoNamespaces) {
  const Namespace a, b;
  const auto layout =
      Layout::inspect(Sequential(isolate(stash_layer({"foo"}), b), isolate(stash_layer({"foo"}), a),
                                 isolate(pop_layer({"foo"}), b), isolate(pop_layer({"foo"}), a)),
                      {1, 1, 2});
  EXPECT_THAT(layout.crossing(),
              ElementsAre(SkipEdge{{b, "foo"}, 0, 2, 0, 2}, SkipEdge{{a, "foo"}, 1, 3, 1, 2}));
}

TEST(LayoutTest, TheCommonNamespaceAndAnotherBetweenTheSamePartitions) {
  const Namespace ns;
  const auto layout =
      Layout::inspect(Sequential(isolate(stash_layer({"a"}), ns), stash_layer({"b", "a"}),
                                 isolate(pop_layer({"a"}), ns), pop_layer({"a", "b"})),
                      {2, 2});
  EXPECT_THAT(layout.crossing(),
              ElementsAre(SkipEdge{common("a"), 1, 3, 0, 1}, SkipEdge{common("b"), 1, 3, 0, 1},
                          SkipEdge{{ns, "a"}, 0, 2, 0, 1}));
}

TEST(LayoutTest, NestedLayersCountAsTheTopLevelLayerAroundThem) {
  const auto layout = Layout::inspect(
      Sequential(Nest(plain_layer(), stash_layer({"foo", "bar"}), pop_layer({"bar"})),
                 plain_layer(), Nest(plain_layer(), Nest(plain_layer(), pop_layer({"foo"})))),
      {1, 1, 1});
  EXPECT_THAT(layout.edges(), ElementsAre(SkipEdge{common("bar"), 0, 0, 0, 0},
                                          SkipEdge{common("foo"), 0, 2, 0, 2}));
  EXPECT_THAT(layout.crossing(), ElementsAre(SkipEdge{common("foo"), 0, 2, 0, 2}));
}

template <typename E>
std::string error_of(const Sequential& model, const std::vector<int64_t>& balance) {
  try {
    Layout::inspect(model, balance);
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(LayoutTest, RefusesWhatDoesNotFit) {
  const Sequential model(plain_layer(), plain_layer());
  EXPECT_THAT(error_of<c10::ValueError>(model, {1}), HasSubstr("{1} has 1 layers and the model 2"));
  EXPECT_THAT(error_of<c10::ValueError>(model, {2, 1}),
              HasSubstr("{2, 1} has more layers than the model (2)"));
  EXPECT_THAT(error_of<c10::ValueError>(model, {2, 0}), HasSubstr("block 1 of {2, 0} has 0"));
  EXPECT_THAT(error_of<c10::ValueError>(model, {int64_t{1} << 62, 1}), HasSubstr("more layers"));
  EXPECT_THAT(error_of<c10::TypeError>(Sequential(pop_layer({"foo"})), {1}),
              HasSubstr("which no layer stashes"));
}

}  // namespace
}  // namespace gpipe::skip
