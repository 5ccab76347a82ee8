#include "gpipe/internal/model/registered.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

nn::Sequential three() { return nn::Sequential(nn::Linear(1, 1), nn::ReLU(), nn::Tanh()); }

auto refuses(const std::string& part, const std::string& advice = "anew") {
  return ThrowsMessage<c10::ValueError>(AllOf(HasSubstr(part), HasSubstr(advice)));
}

TEST(Registered, ALayerWithANameIsFine) {
  nn::Sequential model = three();
  model->push_back("named", nn::Linear(1, 1));
  EXPECT_NO_THROW(check_registered(model));
  EXPECT_NO_THROW(check_registered(nn::Sequential()));
}

TEST(Registered, APushBackThatThrewLeavesALayerBehind) {
  for (const char* name : {"0", "", "a.b"}) {
    nn::Sequential model = three();
    EXPECT_ANY_THROW(model->push_back(name, nn::Sigmoid()));
    EXPECT_THAT([&] { check_registered(model); },
                refuses("layer 3 of the model, torch::nn::SigmoidImpl, runs but has no name"));
    model->push_back("later", nn::ReLU());
    EXPECT_THAT([&] { check_registered(model); }, refuses("layer 3 of the model"));
  }
}

TEST(Registered, NamesAloneCanBeChanged) {
  nn::Sequential replaced = three();
  replaced->replace_module("1", nn::Sigmoid());
  EXPECT_THAT([&] { check_registered(replaced); }, refuses("layer 1 of the model"));
  nn::Sequential without = three();
  without->unregister_module("1");
  EXPECT_THAT([&] { check_registered(without); }, refuses("layer 1 of the model"));
  nn::Sequential more = three();
  more->register_module("head", nn::Linear(1, 1));
  EXPECT_THAT([&] { check_registered(more); }, refuses("the model has the name 'head'"));
  nn::Sequential moved = three();
  const std::shared_ptr<nn::Module> first = moved->ptr(0);
  moved->unregister_module("0");
  moved->register_module("0", first);
  EXPECT_THAT([&] { check_registered(moved); }, refuses("the model has the name '1'"));
}

TEST(Registered, ANullPointerIsNamed) {
  nn::Sequential model;
  model->push_back("nothing", std::shared_ptr<nn::LinearImpl>());
  EXPECT_THAT([&] { check_registered(model); }, refuses("the layer 'nothing'", "null pointer"));
}

}  // namespace
}  // namespace gpipe::internal
