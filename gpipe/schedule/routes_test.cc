#include "gpipe/schedule/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Routes, ActivationsFirstThenSkipsInTheOrderGiven) {
  const Routes routes = Routes::create(4, {{0, 3, "outer"}, {1, 2, "inner"}, {0, 2, "middle"}});
  EXPECT_EQ(routes.to_text(),
            "0: 0 -> 1 activation\n"
            "1: 1 -> 2 activation\n"
            "2: 2 -> 3 activation\n"
            "3: 0 -> 3 outer\n"
            "4: 1 -> 2 inner\n"
            "5: 0 -> 2 middle\n");
  EXPECT_EQ(routes.stages(), 4);
  EXPECT_EQ(routes.size(), 6);
  EXPECT_EQ(routes.skip(RouteId{2}), std::nullopt);
  EXPECT_EQ(routes.skip(RouteId{3}), 0u);
  EXPECT_EQ(routes.skip(RouteId{5}), 2u);
  EXPECT_EQ(routes[RouteId{4}], (Route{1, 2, "inner"}));
  EXPECT_THAT(routes.outgoing(0), ElementsAre(RouteId{0}, RouteId{3}, RouteId{5}));
  EXPECT_THAT(routes.outgoing(1), ElementsAre(RouteId{1}, RouteId{4}));
  EXPECT_THAT(routes.outgoing(3), IsEmpty());
  EXPECT_THAT(routes.incoming(0), IsEmpty());
  EXPECT_THAT(routes.incoming(2), ElementsAre(RouteId{1}, RouteId{4}, RouteId{5}));
  EXPECT_THAT(routes.incoming(3), ElementsAre(RouteId{2}, RouteId{3}));
}

TEST(Routes, OneStageHasNone) {
  const Routes routes = Routes::create(1);
  EXPECT_EQ(routes.size(), 0);
  EXPECT_EQ(routes.stages(), 1);
  EXPECT_THAT(routes.outgoing(0), IsEmpty());
  EXPECT_EQ(routes.to_text(), "");
  EXPECT_THROW(routes.skip(RouteId{0}), std::out_of_range);
}

TEST(Routes, NamesNeedNotBeUnique) {
  const Routes routes = Routes::create(3, {{0, 2, "x"}, {0, 2, "x"}});
  EXPECT_THAT(routes.incoming(2), ElementsAre(RouteId{1}, RouteId{2}, RouteId{3}));
}

TEST(Routes, Equality) {
  EXPECT_EQ(Routes::create(3, {{0, 2, "x"}}), Routes::create(3, {{0, 2, "x"}}));
  EXPECT_NE(Routes::create(3, {{0, 2, "x"}}), Routes::create(3, {{0, 2, "y"}}));
  EXPECT_NE(Routes::create(3), Routes::create(4));
}

TEST(Routes, ArePrinted) {
  const Routes routes = Routes::create(3, {{0, 2, "encoder"}});
  EXPECT_EQ(::testing::PrintToString(routes), routes.to_text());
  EXPECT_EQ(::testing::PrintToString(routes[RouteId{2}]), "0 -> 2 encoder");
  EXPECT_EQ(::testing::PrintToString(RouteId{2}), "2");
}

TEST(Routes, WrongInputThrows) {
  EXPECT_THROW(Routes::create(0), std::invalid_argument);
  EXPECT_THROW(Routes::create(-1), std::invalid_argument);
  EXPECT_THROW(Routes::create(int64_t{1} << 40), std::invalid_argument);
  for (const Route& skip :
       {Route{-1, 1, "s"}, Route{1, 1, "s"}, Route{2, 1, "s"}, Route{0, 3, "s"}}) {
    try {
      Routes::create(3, {skip});
      ADD_FAILURE() << skip.source_stage << " -> " << skip.target_stage;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("skip 's' goes from stage " + std::to_string(skip.source_stage) +
                            " to stage " + std::to_string(skip.target_stage)));
    }
  }
  EXPECT_THROW(Routes::create(3).skip(RouteId{2}), std::out_of_range);
  EXPECT_THROW(Routes::create(3).outgoing(3), std::out_of_range);
  EXPECT_THROW(Routes::create(3).incoming(-1), std::out_of_range);
}

}  // namespace
}  // namespace gpipe
