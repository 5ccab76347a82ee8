#include "gpipe/internal/run/action_place.h"

#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

TEST(ActionPlace, NamesThePartTheMicroBatchAndTheLayer) {
  EXPECT_EQ(place_of({ActionKind::kForward, 1, 3}, /*recompute=*/false, "layer 5 ('relu')",
                     "torch::nn::ReLUImpl"),
            "in the forward of stage 1, micro-batch 3, layer 5 ('relu'), a torch::nn::ReLUImpl");
  EXPECT_EQ(place_of({ActionKind::kBackward, 0, 2}, false, "the loss function", ""),
            "in the backward of stage 0, micro-batch 2, the loss function");
  EXPECT_EQ(place_of({ActionKind::kWeightGradient, 2, 0}, false, "stage 2", ""),
            "in the backward (of weights) of stage 2, micro-batch 0");
}

TEST(ActionPlace, ARecomputeIsNamedWhicheverBackwardMakesIt) {
  EXPECT_EQ(place_of({ActionKind::kInputGradient, 4, 1}, /*recompute=*/true, "stage 4", ""),
            "in the recompute of stage 4, micro-batch 1");
}

}  // namespace
}  // namespace gpipe::internal
