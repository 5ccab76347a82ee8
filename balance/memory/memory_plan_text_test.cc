#include "balance/memory/memory_plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

namespace gpipe::balance {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

// Three stages on two devices; device 0 is fullest in the second step, device 1 has no room.
MemoryPlan sample(int64_t unit = kGiB) {
  MemoryPlan plan;
  plan.balance = {2, 3, 1};
  plan.device_of_stage = {0, 1, 0};
  plan.parameters = 1234567;
  plan.capacity = 2 * unit;
  MemoryTrace& trace = plan.trace;
  trace.devices = 2;
  const Turn forward{Turn::Kind::kAction, {ActionKind::kForward, 0, 3}};
  const Turn backward{Turn::Kind::kAction, {ActionKind::kBackward, 1, 2}};
  const Turn optimizer{Turn::Kind::kOptimizer, {}};
  trace.turns = {{}, {}, forward, backward, optimizer, {}, forward, backward, optimizer};
  trace.blocks = {{2 * unit, 0, MemoryUse::kParameters, -1},
                  {unit / 4, 1, MemoryUse::kParameters, -1},
                  {unit / 2, 0, MemoryUse::kActivations, -1},
                  {unit, 0, MemoryUse::kWorkspace, -1},
                  {unit / 8, 1, MemoryUse::kReceived, 0}};
  trace.events = {{0, 0, false}, {1, 0, false}, {2, 6, false}, {3, 7, false},
                  {4, 7, false}, {3, 7, true},  {2, 8, true}};
  plan.devices.resize(2);
  for (int d = 0; d < 2; ++d) plan.devices[d].peak = peaks(trace)[d];
  plan.devices[0].parameter_count = 1000000;
  plan.devices[0].parameters = 2 * unit;
  plan.devices[0].reserved = 4 * unit;
  plan.devices[1].reserved = -1;
  return plan;
}

TEST(MemoryPlanText, TheTable) {
  EXPECT_EQ(to_text(sample()),
            R"(dev. layers       params   grads  optim.    kept    work    peak reserved  at
0    0-1, 5-5      2.000   0.000   0.000   0.500   1.000   3.500    4.000  B1.2
1    2-4           0.250   0.000   0.000   0.125   0.000   0.375  no room  B1.2
all                                                        3.875  no room

1,234,567 parameters. GiB on each device when it holds most, in the action "at"
(F0.3: the forward of stage 0 for micro-batch 3; B: backward); kept:
activations, received tensors, buffers and data; work: made and given back
within the action; reserved: what LibTorch's allocator for CUDA would hold at
most, without cuDNN's workspaces.
Planned for CUDA devices.
No room: with 2.000 GiB the allocator runs out of memory there, even after it
has given back what it caches.
)");
  std::istringstream lines(to_text(sample()));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80) << line;
}

// A small model's plan is in MiB or KiB, because in GiB all numbers would be 0.
TEST(MemoryPlanText, SmallModelsAreInSmallUnits) {
  for (const auto& [name, bytes] :
       {std::pair<std::string, int64_t>{"MiB", kGiB >> 10}, {"KiB", kGiB >> 20}}) {
    const std::string text = to_text(sample(bytes));
    EXPECT_THAT(text,
                HasSubstr("0    0-1, 5-5      2.000   0.000   0.000   0.500   1.000   3.500"));
    EXPECT_THAT(text, HasSubstr("1,234,567 parameters. " + name + " on each device"));
    EXPECT_THAT(text, HasSubstr("No room: with 2.000 " + name + " "));
    EXPECT_THAT(text, Not(HasSubstr("GiB")));
    const std::string svg = to_svg(sample(bytes), "");
    EXPECT_THAT(svg, HasSubstr("device 1: at most 0.375 " + name + ", in B1.2"));
  }
}

TEST(MemoryPlanText, Json) {
  const auto json = nlohmann::json::parse(to_json(sample()));
  EXPECT_EQ(json["parameters"], 1234567);
  EXPECT_EQ(json["total_bytes"], 3 * kGiB + kGiB / 2 + kGiB / 4 + kGiB / 8);
  EXPECT_TRUE(json["total_reserved_bytes"].is_null());
  EXPECT_EQ(json["balance"], (std::vector<int64_t>{2, 3, 1}));
  ASSERT_EQ(json["devices"].size(), 2);
  EXPECT_EQ(json["devices"][0]["parameters"], 1000000);
  EXPECT_EQ(json["devices"][0]["total_bytes"], 3 * kGiB + kGiB / 2);
  EXPECT_EQ(json["devices"][0]["reserved_bytes"], 4 * kGiB);
  EXPECT_EQ(json["devices"][0]["peak"]["at"], "B1.2");
  EXPECT_EQ(json["devices"][0]["peak"]["bytes"]["workspace"], kGiB);
  EXPECT_TRUE(json["devices"][1]["reserved_bytes"].is_null());
}

TEST(MemoryPlanText, ThePictureHasThePeaksAndTheUsesThatThereAre) {
  const std::string svg = to_svg(sample(), "a <model>");
  EXPECT_THAT(svg, HasSubstr("a &lt;model&gt;"));
  EXPECT_THAT(svg, HasSubstr("device 0: at most 3.5 GiB, in B1.2"));
  EXPECT_THAT(svg, HasSubstr("device 1: at most 0.375 GiB, in B1.2"));
  EXPECT_THAT(svg, HasSubstr(">workspace<"));
  EXPECT_THAT(svg, Not(HasSubstr(">gradients<")));
  EXPECT_THAT(svg, HasSubstr("2 actions"));
  EXPECT_THAT(to_svg(sample(), "a\x1B[0m"), HasSubstr(">a\uFFFD[0m</text>"));
}

}  // namespace
}  // namespace gpipe::balance
