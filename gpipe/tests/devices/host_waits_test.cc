// Tests that no thread waits for a device inside a step, or in a forward and its backward, whatever
// the model, the cut, the mode and the schedule. The only exception is that step() reads its loss
// once. The fake accelerator counts the waits and says where they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/runtime.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/seed.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::fake::HostWaits;
using testing::fake::HostWaitScope;
using testing::fake::runtime;

constexpr int64_t kChunks = 3;
constexpr int64_t kRows = 8;  // makes micro-batches of 3, 3 and 2 rows

enum class Way { kForward, kOneFOneB, kGPipe, kAnySchedule };

// Returns the waits of one training step, as the fake accelerator reports them. `work` runs the
// step.
template <typename Work>
std::vector<std::string> waits_of(const Work& work) {
  (void)runtime().take_unexpected_waits();
  const int64_t before = runtime().counters().host_waits;
  int64_t after = 0;
  {
    const HostWaitScope nobody_waits(runtime(), HostWaits::kForbidden);
    work();
    after = runtime().counters().host_waits;
  }
  std::vector<std::string> waits = runtime().take_unexpected_waits();
  if (waits.size() <= 1) {
    EXPECT_EQ(after - before, static_cast<int64_t>(waits.size()));
  }
  return waits;
}

class HostWaitsTest : public ::testing::TestWithParam<std::tuple<int64_t, Checkpoint, Way, bool>> {
};
class HostWaitsWithGraphs : public HostWaitsTest {};

// Expects that no thread waits. With graphs, the steps whose waits are counted are replays.
void expect_no_waits(const HostWaitsTest::ParamType& parameters, bool graphs) {
  const auto [partitions, mode, way, one_device] = parameters;
  int64_t replayed = 0;
  for (const testing::SampleModel& sample : testing::sample_models()) {
    for (const bool defer : {false, true}) {
      if (defer && sample.name != "batch_norm") continue;
      const int64_t stages = std::min(partitions, sample.layers);
      std::vector<int64_t> balance(stages, 1);
      balance.back() += sample.layers - stages;
      SCOPED_TRACE(sample.name + " " + ::testing::PrintToString(balance) +
                   (defer ? ", deferred" : ""));
      const std::vector<c10::Device> where =
          one_device ? std::vector<c10::Device>(stages, testing::device(1))
                     : testing::devices(stages);
      GPipe pipe(sample.make(), GPipeOptions(balance)
                                    .devices(where)
                                    .chunks(kChunks)
                                    .checkpoint(mode)
                                    .deferred_batch_norm(defer)
                                    .graphs(graphs));
      Tensors inputs = testing::on(where.front(), sample.inputs(kRows));
      for (at::Tensor& input : inputs) {
        if (input.is_floating_point()) input.requires_grad_();
      }
      const Tensors targets = testing::on(where.back(), sample.targets(kRows));
      StepOptions options;
      options.keep_outputs(true);
      if (way == Way::kGPipe) options.schedule(Schedule::gpipe);
      if (way == Way::kAnySchedule) {
        std::mt19937_64 random = testing::test_random();
        options.schedule(testing::random_schedule(stages, kChunks,
                                                  testing::MicroBatchOrder::kAscending, random));
      }
      const auto train = [&, way = way] {
        if (way == Way::kForward) {
          sample.loss(pipe->forward(inputs), targets).backward();
        } else {
          pipe->step(inputs, targets, sample.loss, options);
        }
      };
      // With graphs, the first steps run without recording, and the next ones record. The steps
      // after these four are replays.
      for (int step = 0; graphs && step < 4; ++step) train();
      // The second step differs from the first: its schedule is already compiled, and its streams
      // and buffers are made.
      for (int step = 0; step < 2; ++step) {
        const auto waits = waits_of(train);
        if (way == Way::kForward) {
          EXPECT_THAT(waits, IsEmpty()) << "step " << step;
        } else {
          const std::string loss =
              "the test's thread waits for " + where.back().str() + ": copy to the host, blocking";
          EXPECT_THAT(waits, ElementsAre(loss)) << "step " << step;
        }
      }
      for (const GraphUse& use : pipe->graph_use()) {
        if (!defer) {
          EXPECT_EQ(use.reason, "");
        }
        replayed += use.replayed;
      }
    }
  }
  EXPECT_EQ(replayed > 0, graphs);
}

TEST_P(HostWaitsTest, ThereAreNone) { expect_no_waits(GetParam(), /*graphs=*/false); }

TEST_P(HostWaitsWithGraphs, ThereAreNone) { expect_no_waits(GetParam(), /*graphs=*/true); }

std::string case_name(const ::testing::TestParamInfo<HostWaitsTest::ParamType>& info) {
  static const char* const kModes[] = {"always", "except_last", "never"};
  static const char* const kWays[] = {"forward", "one_f_one_b", "gpipe", "any_schedule"};
  return std::to_string(std::get<0>(info.param)) + "_stages_" +
         kModes[static_cast<int>(std::get<1>(info.param))] + "_" +
         kWays[static_cast<int>(std::get<2>(info.param))] +
         (std::get<3>(info.param) ? "_on_one_device" : "");
}

INSTANTIATE_TEST_SUITE_P(All, HostWaitsTest,
                         ::testing::Combine(::testing::Values(1, 3),
                                            ::testing::Values(Checkpoint::kAlways,
                                                              Checkpoint::kExceptLast,
                                                              Checkpoint::kNever),
                                            ::testing::Values(Way::kForward, Way::kOneFOneB,
                                                              Way::kGPipe, Way::kAnySchedule),
                                            ::testing::Bool()),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Some, HostWaitsWithGraphs,
                         ::testing::Combine(::testing::Values(3),
                                            ::testing::Values(Checkpoint::kAlways,
                                                              Checkpoint::kExceptLast,
                                                              Checkpoint::kNever),
                                            ::testing::Values(Way::kForward, Way::kOneFOneB),
                                            ::testing::Bool()),
                         case_name);

// Shows that the tests above would notice a wait: a layer that reads a value is reported with its
// place.
TEST(HostWaits, AreFoundWithTheirPlace) {
  const auto asks = testing::layer<at::Tensor, at::Tensor>(
      [](const at::Tensor& x) { return x * x.abs().max().item<double>(); });
  const auto passes =
      testing::layer<at::Tensor, at::Tensor>([](const at::Tensor& x) { return x * 2; });
  GPipe pipe(torch::nn::Sequential(passes, asks),
             GPipeOptions({1, 1}).devices(testing::devices(2)).chunks(2));
  const at::Tensor x = torch::ones({4, 4}, testing::device()).requires_grad_();
  at::Tensor y;
  EXPECT_THAT(waits_of([&] { y = pipe->forward(x); }),
              ElementsAre(HasSubstr("waits for fake:1: item, in the forward of stage 1, "
                                    "micro-batch 0, layer 1 ('1')"),
                          HasSubstr("in the forward of stage 1, micro-batch 1, layer 1 ('1')")));
  EXPECT_THAT(waits_of([&] { y.sum().backward(); }),
              ElementsAre(HasSubstr("in the recompute of stage 1, micro-batch 0, layer 1 ('1')")));
}

}  // namespace
}  // namespace gpipe
