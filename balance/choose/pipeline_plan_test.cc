#include "balance/choose/pipeline_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/search/generators.h"

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using Json = nlohmann::ordered_json;

PipelinePlan sample() {
  PipelinePlan plan;
  plan.model = "unet:5,64";
  plan.profiled_on = "a \"processor\" @ 3 GHz";
  plan.rows = 7;
  plan.balance = {3, 1, 2, 5};
  plan.chunks = 4;
  plan.checkpoints = {Checkpoint::kAlways, Checkpoint::kNever, Checkpoint::kExceptLast,
                      Checkpoint::kNever};
  plan.schedule_name = "dualpipe-v";
  plan.schedule = dualpipe_v(2, 4);
  plan.step = 1.0 / 3;
  plan.lower_bound = 0.1 + 0.2;
  plan.devices = {{int64_t{1} << 40, 12345, 54321, 999}, {0, 1, -1}};
  return plan;
}

std::string path(const std::string& name) {
  const char* folder = std::getenv("TEST_TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/" + name;
}

TEST(PipelinePlan, TextAndJsonKeepEveryBit) {
  const PipelinePlan plan = sample();
  EXPECT_EQ(plan_from_text(plan_to_text(plan), "f"), plan);
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "f"), plan);
  PipelinePlan plain;
  EXPECT_NE(plain, plan);
  EXPECT_EQ(plan_from_text(plan_to_text(plain), "f"), plain) << "without names";
  EXPECT_EQ(plan_from_json(plan_to_json(plain), "f"), plain);
  EXPECT_EQ(plan.placement(), Placement::v_shape(2));
}

TEST(PipelinePlan, ANameOfSeveralLinesIsOneInTheText) {
  PipelinePlan plan = sample();
  plan.schedule_name = "mine\nstep 0";
  EXPECT_EQ(plan_from_text(plan_to_text(plan), "p").schedule_name, "mine step 0");
}

TEST(PipelinePlan, AnyFieldThatDiffersIsAnotherPlan) {
  const std::vector<std::function<void(PipelinePlan&)>> changes = {
      [](PipelinePlan& plan) { plan.model += "x"; },
      [](PipelinePlan& plan) { plan.profiled_on += "x"; },
      [](PipelinePlan& plan) { ++plan.rows; },
      [](PipelinePlan& plan) {
        plan.balance = {1, 3, 2, 5};
      },
      [](PipelinePlan& plan) { ++plan.chunks; },
      [](PipelinePlan& plan) { plan.checkpoints[0] = Checkpoint::kNever; },
      [](PipelinePlan& plan) { plan.schedule_name = "zb-v"; },
      [](PipelinePlan& plan) { plan.schedule = v_min(2, 4); },
      [](PipelinePlan& plan) { plan.step += 1e-17; },
      [](PipelinePlan& plan) { plan.lower_bound /= 2; },
      [](PipelinePlan& plan) { ++plan.devices[1].live; },
      [](PipelinePlan& plan) { ++plan.devices[0].predicted; },
      [](PipelinePlan& plan) {
        plan.shared_inputs = {1, 3};
      },
      [](PipelinePlan& plan) { plan.autocast = "bfloat16"; },
      [](PipelinePlan& plan) { plan.deferred_batch_norm = true; }};
  for (size_t k = 0; k < changes.size(); ++k) {
    PipelinePlan changed = sample();
    changes[k](changed);
    if (k == 8) {  // this change is too small for a double
      EXPECT_EQ(changed, sample());
      changed.step *= 1 + 1e-15;
    }
    EXPECT_NE(changed, sample()) << k;
    EXPECT_EQ(plan_from_text(plan_to_text(changed), "f"), changed) << k;
    EXPECT_EQ(plan_from_json(plan_to_json(changed), "f"), changed) << k;
  }
}

TEST(PipelinePlan, FilesOfBothKindsAreRead) {
  std::ofstream(path("plan.txt")) << "# made by hand\n\n" << plan_to_text(sample());
  std::ofstream(path("plan.json")) << plan_to_json(sample());
  EXPECT_EQ(load_plan(path("plan.txt")), sample());
  EXPECT_EQ(load_plan(path("plan.json")), sample());
  EXPECT_THAT([] { load_plan(path("none")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("No such file")));
}

TEST(PipelinePlan, MessagesOfTextsNameTheLine) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = plan_to_text(sample());
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> damages = {
      {with("gpipe plan 1", "gpipe plan 2"), "line 1: expected version 1"},
      {with("model ", "modell "), "line 2: expected 'model ...', got 'modell unet:5,64'"},
      {with("rows 7", "rows 7.5"), "line 4: expected a whole number, got '7.5'"},
      {with("always", "sometimes"), "line 7: expected always, except_last or never"},
      {with("step 0", "step x"), "line 9: expected a number"},
      {with("device 1 limit", "device 2 limit"), "line 12: expected 'device 1 limit BYTES"},
      {with("balance 3 1 2 5", "balance 3 1 7"), "balance has 3 values, but the schedule has 4"},
      {with("balance 3", "balance 0"), "balance[0] is 0, expected at least one layer"},
      {with("chunks 4", "chunks 3"), "do not make the schedule's 4 micro-batches"},
      {with("live 12345", "live -12345"), "negative number of bytes"},
      {with("live 12345", "live 55000"), "devices[0] reserves less than is live"},
      {with("limit 1099511627776", "limit 54320"), "devices[0] takes more than its limit"},
      {with("lower_bound 0.3", "lower_bound 0.4"), "above the step"},
      {with("F0.0 ", ""), "the schedule: "},
      {with("stages 4", "stages four"), "the schedule: "}};
  for (const auto& damage : damages) {
    EXPECT_THAT([&damage] { plan_from_text(damage.first, "my.txt"); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(StartsWith("my.txt"), HasSubstr(damage.second))));
  }
  const std::string text = plan_to_text(sample());
  for (size_t length = 0; length + 2 < text.size(); length += 7) {
    EXPECT_THROW(plan_from_text(text.substr(0, length), "f"), std::invalid_argument) << length;
  }
}

TEST(PipelinePlan, MessagesOfJsonNameTheField) {
  const std::vector<std::pair<std::function<void(Json&)>, std::string>> damages = {
      {[](Json& json) { json["format"] = "other"; }, "not a plan"},
      {[](Json& json) { json["version"] = 2; }, "not of version 1"},
      {[](Json& json) { json["balance"] = "even"; }, "balance: "},
      {[](Json& json) { json.erase("chunks"); }, "chunks: "},
      {[](Json& json) { json["checkpoints"][1] = "sometimes"; }, "checkpoints: "},
      {[](Json& json) { json["devices"][0].erase("live"); }, "live: "},
      {[](Json& json) { json["rows"] = 32.9; }, "rows: expected a whole number, got 32.9"},
      {[](Json& json) { json["balance"][0] = 2.5; }, "balance: expected a whole number, got 2.5"},
      {[](Json& json) { json["devices"][0]["reserved"] = 18446744073709551615u; },
       "reserved: expected a whole number"},
      {[](Json& json) { json["step"] = -1; }, "expected seconds of at least 0"},
      {[](Json& json) { json["units"] = "hours, bits"; }, "units are not"},
      {[](Json& json) { std::swap(json["placement"][0], json["placement"][1]); }, "placement: "},
      {[](Json& json) { json["schedule"] = "stages 4"; }, "the schedule: "},
      {[](Json& json) {
         std::string text = Schedule::create(4, 4, std::vector<std::vector<Action>>(2)).to_text();
         json["schedule"] = text;
       },
       "the schedule has no forwards"}};
  for (const auto& [change, message] : damages) {
    Json json = Json::parse(plan_to_json(sample()));
    change(json);
    EXPECT_THAT(
        [&] { plan_from_json(json.dump(), "my.json"); },
        ThrowsMessage<std::invalid_argument>(AllOf(StartsWith("my.json"), HasSubstr(message))));
  }
  EXPECT_THAT([] { plan_from_json("{", "my.json"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("is not valid JSON")));
  Json json = Json::parse(plan_to_json(sample()));
  json["devices"][1]["live"] = "-1e999";
  std::string text = json.dump();
  text.replace(text.find("\"-1e999\""), 8, "-1e999");
  EXPECT_THAT([&] { plan_from_json(text, "my.json"); },
              ThrowsMessage<std::invalid_argument>(StartsWith(
                  "my.json: devices[1].live is -1e999, which does not fit in a double")));
}

}  // namespace
}  // namespace gpipe::balance
