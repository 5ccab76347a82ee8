#include "experiments/frame/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

TEST(TraceFile, HasTheVariantBeforeItsEnding) {
  EXPECT_EQ(trace_file("/a.b/trace.json", "pipeline-2"), "/a.b/trace.pipeline-2.json");
  EXPECT_EQ(trace_file("/a.b/trace", "pipeline-2"), "/a.b/trace.pipeline-2");
  EXPECT_EQ(trace_file("t.x.svg", "baseline"), "t.x.baseline.svg");
}

std::string written(const std::string& name, const Timeline& timeline, std::ostream* out) {
  const std::string path = ::testing::TempDir() + "/" + name;
  write_trace(path, "pipeline-1", timeline, std::nullopt, out);
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::remove(path.c_str());
  return text;
}

TEST(WriteTrace, WritesTheLastStepInTheFormOfTheEnding) {
  Timeline timeline;
  const Observer observer = timeline.observer();
  const Event::Time now = std::chrono::steady_clock::now();
  for (int64_t run = 0; run < 2; ++run) {
    const Action action{ActionKind::kForward, 0, 0};
    observer({Event::Edge::kBegin, action, 0, now, false, {}, {}, run});
    observer({Event::Edge::kEnd,
              action,
              0,
              now + std::chrono::milliseconds(run + 1),
              false,
              {},
              {},
              run});
  }
  std::ostringstream out;
  const std::string trace = written("trace.json", timeline, &out);
  // The trace has the step's one action, and the same action as simulated.
  const nlohmann::json events = nlohmann::json::parse(trace).at("traceEvents");
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const nlohmann::json& event) { return event.at("name") == "F0.0"; }),
            2);
  for (const nlohmann::json& event : events) {
    if (event.at("name") != "F0.0") continue;
    EXPECT_EQ(event.at("ts"), 0) << "both steps must begin at 0";
  }
  EXPECT_THAT(out.str(), StartsWith("pipeline-1, the last whole step; a step: 2 ms on 1 worker"));
  EXPECT_THAT(out.str(), HasSubstr("compute"));
  EXPECT_THAT(written("trace.svg", timeline, nullptr), StartsWith("<svg"));
  EXPECT_THAT(written("trace.svg", timeline, nullptr), HasSubstr("simulated"));
  EXPECT_THAT(trace, HasSubstr("pipeline-1, simulated"));
  EXPECT_THAT([] { written("none.json", Timeline(), nullptr); },
              ThrowsMessage<std::runtime_error>(HasSubstr("no step was run")));
  EXPECT_THROW(write_trace("/dev/null/t.json", "t", timeline, std::nullopt, nullptr),
               std::runtime_error);
}

TEST(WriteTrace, ExplainsASimulationThatTakesLonger) {
  for (const bool longer : {true, false}) {
    Timeline timeline;
    const Observer observer = timeline.observer();
    const Event::Time now = std::chrono::steady_clock::now();
    int64_t elapsed = 0;
    for (int32_t i = 0; i < 3; ++i) {
      const Action action{ActionKind::kForward, 0, i};
      // The simulation takes the median for each action. If `longer`, that is 10 ms, which is more
      // than the actions took on average; else 1 ms, which is less.
      const int64_t milliseconds = longer == (i == 0) ? 1 : 10;
      const auto time = [&] { return now + std::chrono::milliseconds(elapsed); };
      observer({Event::Edge::kBegin, action, 0, time(), false, {}, {}, 0});
      elapsed += milliseconds;
      observer({Event::Edge::kEnd, action, 0, time(), false, {}, {}, 0});
    }
    std::ostringstream out;
    written("trace.json", timeline, &out);
    EXPECT_EQ(out.str().find("takes longer than the step did") != std::string::npos, longer)
        << out.str();
  }
}

}  // namespace
}  // namespace gpipe::experiments
