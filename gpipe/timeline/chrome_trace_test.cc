#include "gpipe/timeline/chrome_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

using Json = nlohmann::json;

std::vector<Json> events(const Json& trace, const std::string& phase) {
  std::vector<Json> result;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) result.push_back(event);
  }
  return result;
}

StepTimeline step(const Schedule& schedule, const Routes& routes) {
  return to_timeline(simulate(schedule, routes, {uniform_cost({1.0, 2.0}), {}}), 1e-3,
                     [](const Action& action) {
                       return action.kind == ActionKind::kBackward && action.stage < 2 ? 1.0 : 0.0;
                     });
}

TEST(ChromeTrace, HasActionsRecomputesStepsAndTracks) {
  const Schedule schedule = Schedule::one_f_one_b(3, 2);
  const StepTimeline timeline = step(schedule, Routes::create(3));
  const Json trace = Json::parse(to_chrome_trace({{"pipeline", {timeline, timeline}, {}}}));
  std::map<std::string, int> categories;
  for (const Json& event : events(trace, "X")) {
    ++categories[event.at("cat")];
    if (event.at("name") != "B1.0") continue;
    EXPECT_EQ(event.at("args").at("stage"), 1);
    EXPECT_EQ(event.at("args").at("micro_batch"), 0);
    EXPECT_EQ(event.at("args").at("kind"), "backward");
    EXPECT_EQ(event.at("tid"), 1);
    EXPECT_DOUBLE_EQ(event.at("dur"), 2000.0);  // us
  }
  EXPECT_EQ(categories, (std::map<std::string, int>{
                            {"backward", 12}, {"forward", 12}, {"recompute", 8}, {"step", 2}}));
  std::set<std::string> tracks;
  for (const Json& event : events(trace, "M")) {
    if (event.at("name") == "thread_name") tracks.insert(event.at("args").at("name"));
  }
  EXPECT_EQ(tracks, (std::set<std::string>{"steps", "worker 0", "worker 1", "worker 2"}));
}

TEST(ChromeTrace, ArrowsGoFromTheEndOfWhatMadeAValueToTheBeginOfWhatTookIt) {
  const Routes routes = Routes::create(3, {{0, 2, "skip 'a'"}});
  const StepTimeline timeline = step(Schedule::gpipe(3, 2), routes);
  const Json trace = Json::parse(to_chrome_trace({{"pipeline", {timeline}, routes}}));
  std::map<int, Json> begins;
  for (const Json& event : events(trace, "s")) begins[event.at("id")] = event;
  EXPECT_EQ(begins.size(), 12u);  // three routes, two micro-batches, forward and backward
  std::map<std::string, int> names;
  for (const Json& event : events(trace, "f")) {
    ASSERT_EQ(begins.count(event.at("id")), 1u);
    const Json& begin = begins[event.at("id")];
    EXPECT_EQ(event.at("bp"), "e");
    EXPECT_LE(begin.at("ts").get<double>(), event.at("ts").get<double>());
    EXPECT_NE(begin.at("tid"), event.at("tid"));
    ++names[event.at("name")];
    // Each end of an arrow is within one action.
    for (const Json& end : {begin, event}) {
      int inside = 0;
      for (const Json& action : events(trace, "X")) {
        const double from = action.at("ts");
        if (action.at("tid") == end.at("tid") && action.at("cat") != "recompute" &&
            from <= end.at("ts") && end.at("ts") < from + action.at("dur").get<double>()) {
          ++inside;
        }
      }
      EXPECT_EQ(inside, 1);
    }
  }
  EXPECT_EQ(names, (std::map<std::string, int>{{"activation", 4},
                                               {"gradient of activation", 4},
                                               {"skip 'a'", 2},
                                               {"gradient of skip 'a'", 2}}));
}

TEST(ChromeTrace, MarksWhatFailed) {
  StepTimeline timeline = step(Schedule::gpipe(2, 1), Routes::create(2));
  timeline.workers[1].resize(1);
  timeline.workers[1][0].failed = true;
  timeline.workers[0].resize(1);
  const Json trace = Json::parse(to_chrome_trace({{"pipeline", {timeline}, {}}}));
  int failed = 0;
  for (const Json& event : events(trace, "X")) {
    const std::string name = event.at("name");
    EXPECT_EQ(name.find("failed") != std::string::npos, name[0] != 'F' || name[1] == '1') << name;
    failed += event.contains("args") && event.at("args").contains("failed") ? 1 : 0;
  }
  EXPECT_EQ(failed, 1);
}

TEST(ChromeTrace, OfNothingIsStillATrace) {
  EXPECT_TRUE(Json::parse(to_chrome_trace({})).at("traceEvents").empty());
  EXPECT_FALSE(Json::parse(to_chrome_trace({{"a \"name\"", {}, {}}})).at("traceEvents").empty());
}

}  // namespace
}  // namespace gpipe
