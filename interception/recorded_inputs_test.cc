#include "interception/recorded_inputs.h"

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace gpipe::internal {
namespace {

// The name of the last operator that was called, and the kinds of its inputs.
std::string* seen() {
  static std::string text;
  return &text;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  *seen() = call.name();
  for (const c10::IValue& input : recorded_inputs(call)) *seen() += " " + input.tagKind();
  return nullptr;
}

TEST(RecordedInputs, AreThoseOfTheCall) {
  const at::Tensor ones = at::ones({2});
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&begin).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  at::add(ones, ones, 2);
  at::removeCallback(handle);
  EXPECT_EQ(*seen(), "aten::add Tensor Tensor Int");
}

}  // namespace
}  // namespace gpipe::internal
