#include "gpipe/schedule/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::internal {
namespace {

using Table = std::vector<std::vector<Action>>;

Table parse(const std::vector<std::vector<const char*>>& rows) {
  Table table;
  for (const auto& row : rows) {
    table.emplace_back();
    for (const char* text : row) table.back().push_back(Action::from_text(text));
  }
  return table;
}

// An edge as text: "F0.0/1" for an action over route 1, "F0.0" for a stage's own result.
std::string text(const std::vector<Dependencies::Edge>& edges) {
  std::string all;
  for (const auto& edge : edges) {
    all += (all.empty() ? "" : " ") + edge.action.to_text();
    if (edge.route) all += "/" + to_text(*edge.route);
  }
  return all;
}

TEST(Dependencies, FollowTheRoutesAndBack) {
  const Table table = parse({{"F0.0", "B0.0"}, {"F1.0", "I1.0", "W1.0"}, {"F2.0", "B2.0"}});
  const Routes routes = Routes::create(3, {{0, 2, "skip"}});
  const Dependencies dependencies(3, 1, table, routes);
  const auto needs = [&](const char* action) {
    return text(dependencies.needs(Action::from_text(action)));
  };
  const auto feeds = [&](const char* action) {
    return text(dependencies.feeds(Action::from_text(action)));
  };
  EXPECT_EQ(needs("F0.0"), "");
  EXPECT_EQ(needs("F1.0"), "F0.0/0");
  EXPECT_EQ(needs("F2.0"), "F1.0/1 F0.0/2");
  EXPECT_EQ(needs("B2.0"), "F2.0");
  EXPECT_EQ(needs("I1.0"), "B2.0/1 F1.0");
  EXPECT_EQ(needs("W1.0"), "I1.0");
  EXPECT_EQ(needs("B0.0"), "I1.0/0 B2.0/2 F0.0");
  EXPECT_EQ(feeds("F0.0"), "F1.0/0 F2.0/2");
  EXPECT_EQ(feeds("F2.0"), "");
  EXPECT_EQ(feeds("B2.0"), "I1.0/1 B0.0/2");
  EXPECT_EQ(feeds("I1.0"), "B0.0/0");
  EXPECT_EQ(feeds("W1.0"), "");
  EXPECT_EQ(feeds("B0.0"), "");
}

TEST(Dependencies, AVisitEndsWhenItIsStopped) {
  const Table table = parse({{"F0.0"}, {"F1.0"}, {"F2.0"}});
  const Routes routes = Routes::create(3, {{0, 2, "skip"}});
  const Dependencies dependencies(3, 1, table, routes);
  std::vector<Dependencies::Edge> seen;
  const auto visit = [&](size_t most) {
    seen.clear();
    return dependencies.for_each_need(Action::from_text("F2.0"),
                                      [&](const Dependencies::Edge& edge) {
                                        seen.push_back(edge);
                                        return seen.size() < most;
                                      });
  };
  EXPECT_TRUE(visit(3));
  EXPECT_EQ(text(seen), "F1.0/1 F0.0/2");
  EXPECT_FALSE(visit(1));
  EXPECT_EQ(text(seen), "F1.0/1");
}

TEST(Dependencies, ActionsThatAreNotThereAreLeftOut) {
  const Table table = parse({{"B0.0"}, {"B1.0"}});
  const Routes routes = Routes::create(2);
  const Dependencies dependencies(2, 1, table, routes);
  EXPECT_FALSE(dependencies.find({ActionKind::kForward, 0, 0}));
  EXPECT_EQ(dependencies.find({ActionKind::kBackward, 1, 0}).worker, 1);
  EXPECT_EQ(text(dependencies.needs({ActionKind::kBackward, 0, 0})), "B1.0/0");
}

TEST(Dependencies, OrderHoldsEveryActionAfterItsNeeds) {
  const Table table = parse({{"F0.0", "B0.0"}, {"F1.0", "B1.0"}});
  const Routes routes = Routes::create(2);
  const Dependencies dependencies(2, 1, table, routes);
  std::string all;
  for (const Position& position : dependencies.order()) {
    all +=
        table[static_cast<size_t>(position.worker)][static_cast<size_t>(position.index)].to_text() +
        " ";
  }
  EXPECT_EQ(all, "F0.0 F1.0 B1.0 B0.0 ");
}

TEST(Dependencies, OrderStopsShortWhereNothingCanGoOn) {
  const Table table = parse({{"F0.0", "B0.0", "F0.1", "B0.1"}, {"F1.1", "B1.1", "F1.0", "B1.0"}});
  const Routes routes = Routes::create(2);
  const Dependencies dependencies(2, 2, table, routes);
  EXPECT_EQ(dependencies.order().size(), 1u);
}

}  // namespace
}  // namespace gpipe::internal
