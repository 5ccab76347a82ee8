#include "gpipe/options.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace gpipe {
namespace {

std::string text_of(const Failure& failure) {
  std::ostringstream out;
  out << failure;
  return out.str();
}

TEST(Failure, HasAText) {
  Failure failure;
  failure.stage = 1;
  failure.micro_batch = 3;
  failure.layer = "layer 5 ('relu')";
  EXPECT_EQ(text_of(failure), "forward of stage 1, micro-batch 3, layer 5 ('relu')");
  failure.layer_type = "torch::nn::ReLUImpl";
  failure.backward = true;
  EXPECT_EQ(text_of(failure),
            "backward of stage 1, micro-batch 3, layer 5 ('relu'), a torch::nn::ReLUImpl");
  failure.recompute = true;
  failure.layer_type = "";
  failure.layer = "stage 1";  // the text of a failure in none of the stage's layers
  EXPECT_EQ(text_of(failure), "recompute of stage 1, micro-batch 3");
  failure.out_of_memory = OutOfMemory{c10::Device(c10::kCUDA, 1), 100, 10, 90};
  EXPECT_EQ(text_of(failure),
            "recompute of stage 1, micro-batch 3 (cuda:1 was asked for 100 bytes; 10 of 90 were "
            "free)");
}

}  // namespace
}  // namespace gpipe
