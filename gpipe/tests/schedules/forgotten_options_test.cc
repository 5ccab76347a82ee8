// What a pipeline is made without, where that is hardly meant: a warning says what to give.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/processes/connected.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/log_capture.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

nn::Sequential model(int64_t layers) {
  nn::Sequential result;
  for (int64_t k = 0; k < layers; ++k) result->push_back(nn::Linear(4, 4));
  return result;
}

void step(GPipe& pipe, const std::string& schedule) {
  const auto mean = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).mean(); };
  pipe->step({torch::rand({4, 4})}, {}, mean, StepOptions().schedule(schedule_by_name(schedule)));
}

TEST(ForgottenOptions, APlacementIsNamedOnce) {
  GPipe placed(model(2), testing::cpu_options({1, 1}).chunks(2).placement(Placement::v_shape(1)));
  GPipe pipe(model(2), testing::cpu_options({1, 1}).chunks(2));
  const testing::LogCapture log;
  step(placed, "zb-v");
  step(pipe, "1f1b");
  EXPECT_THAT(log.warnings(), IsEmpty());
  for (int k = 0; k < 2; ++k) {
    step(pipe, "zb-v");
    EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("runs 2 stages on one worker"),
                                                  HasSubstr("Placement::of({0, 0})"))));
  }
}

TEST(ForgottenOptions, AWorldIsNamedOnce) {
  const testing::LogCapture log;
  { GPipe pipe(model(2), testing::cpu_options({1, 1})); }
  EXPECT_THAT(log.warnings(), IsEmpty());
  const internal::Connected connected;
  for (int k = 0; k < 2; ++k) {
    GPipe pipe(model(2), testing::cpu_options({1, 1}));
    EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("without GPipeOptions::world"),
                                                  HasSubstr("give .world(world)"))));
  }
}

}  // namespace
}  // namespace gpipe
