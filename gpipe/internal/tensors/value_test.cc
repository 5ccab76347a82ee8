#include "gpipe/internal/tensors/value.h"

#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::EndsWith;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using torch::nn::AnyModule;
using torch::nn::AnyValue;

using Tensors = std::vector<Tensor>;
using Tuple2 = std::tuple<Tensor, Tensor>;
using Tuple3 = std::tuple<Tensor, Tensor, Tensor>;
using Tuple4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;

struct Own {};

Tensors some(size_t number) {
  Tensors tensors;
  for (size_t k = 0; k < number; ++k) tensors.push_back(at::randn({2}));
  return tensors;
}

// Returns the message of the `Error` that `call` throws, or "" if it throws none.
template <typename Error, typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// Returns a layer that must not run, because only the type of its argument is asked for.
template <typename In>
AnyModule taking() {
  return AnyModule(testing::layer<In, Tensor>([](In /*x*/) -> Tensor {
    ADD_FAILURE() << "the layer ran";
    return {};
  }));
}

template <typename Type>
struct TwoImpl : torch::nn::Module {
  Tensor forward(Tensor x, Type /*y*/) { return x; }
};
struct NoneImpl : torch::nn::Module {
  Tensor forward() { return {}; }
};
struct OptionalImpl : torch::nn::Module {
  Tensor forward(Tensor x, Tensor y = {}) { return y.defined() ? y : x; }
  FORWARD_HAS_DEFAULT_ARGS({1, AnyValue(Tensor())})
};
struct ReferenceImpl : torch::nn::Module {
  Tensor forward(const Tuple2& x) { return std::get<0>(x); }
};

TEST(ValueTest, KindsAreWrittenAsInCpp) {
  EXPECT_STREQ(to_text(ValueKind::kTensor), "Tensor");
  EXPECT_STREQ(to_text(ValueKind::kTensors), "std::vector<Tensor>");
  EXPECT_STREQ(to_text(ValueKind::kTuple2), "std::tuple<Tensor, Tensor>");
  EXPECT_STREQ(to_text(ValueKind::kTuple3), "std::tuple<Tensor, Tensor, Tensor>");
  EXPECT_STREQ(to_text(ValueKind::kTuple4), "std::tuple<Tensor, Tensor, Tensor, Tensor>");
}

// Converts `tensors` to the C++ type and back. The tensor objects stay the same, in their order.
template <typename Type>
void expect_travels(ValueKind kind, const Tensors& tensors) {
  EXPECT_NE(to_any({kind, tensors}).try_get<Type>(), nullptr) << to_text(kind);
  const Value back = from_any(to_any({kind, tensors}));
  EXPECT_EQ(back.kind, kind);
  ASSERT_EQ(back.tensors.size(), tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) EXPECT_TRUE(back.tensors[k].is_same(tensors[k]));
}

TEST(ValueTest, EveryKindTravelsAsItsOwnType) {
  expect_travels<Tensor>(ValueKind::kTensor, some(1));
  expect_travels<Tensor>(ValueKind::kTensor, {Tensor()});
  for (size_t number : {0, 1, 2, 7}) expect_travels<Tensors>(ValueKind::kTensors, some(number));
  expect_travels<Tuple2>(ValueKind::kTuple2, some(2));
  expect_travels<Tuple3>(ValueKind::kTuple3, some(3));
  expect_travels<Tuple4>(ValueKind::kTuple4, some(4));
  expect_travels<Tuple2>(ValueKind::kTuple2, {Tensor(), at::randn({1})});
}

TEST(ValueTest, TupleElementsKeepTheirPlaces) {
  const Tensors in = some(3);
  const auto tuple = to_any({ValueKind::kTuple3, in}).get<Tuple3>();
  EXPECT_TRUE(std::get<0>(tuple).is_same(in[0]));
  EXPECT_TRUE(std::get<2>(tuple).is_same(in[2]));
}

TEST(ValueTest, RefusesATypeThatCannotTravelAndNamesIt) {
  auto text = [](AnyValue value) {
    return refusal<c10::TypeError>([&] { (void)from_any(std::move(value)); });
  };
  EXPECT_THAT(text(AnyValue(std::string("x"))),
              AllOf(HasSubstr("type std::string;"), HasSubstr("std::vector<Tensor>")));
  EXPECT_THAT(text(AnyValue(std::map<std::string, Tensor>())),
              HasSubstr("type std::map<std::string, Tensor>;"));
  EXPECT_THAT(text(AnyValue(std::tuple<Tensor>())), HasSubstr("type std::tuple<Tensor>;"));
  EXPECT_THAT(text(AnyValue(Own())), HasSubstr("type gpipe::internal::Own;"));
}

TEST(ValueTest, FindsTheArgumentsTypeWithoutRunningTheLayer) {
  auto kind = [](AnyModule layer) { return argument_kind(layer); };
  EXPECT_EQ(kind(taking<Tensor>()), ValueKind::kTensor);
  EXPECT_EQ(kind(taking<Tensors>()), ValueKind::kTensors);
  EXPECT_EQ(kind(taking<Tuple2>()), ValueKind::kTuple2);
  EXPECT_EQ(kind(taking<Tuple3>()), ValueKind::kTuple3);
  EXPECT_EQ(kind(taking<Tuple4>()), ValueKind::kTuple4);
  EXPECT_EQ(kind(AnyModule(torch::nn::Linear(2, 2))), ValueKind::kTensor);
  EXPECT_EQ(kind(AnyModule(OptionalImpl())), ValueKind::kTensor);
  EXPECT_EQ(kind(AnyModule(ReferenceImpl())), ValueKind::kTuple2);
  EXPECT_EQ(kind(taking<std::tuple<Tensor>>()), std::nullopt);
  EXPECT_EQ(kind(taking<Own>()), std::nullopt);
  EXPECT_EQ(kind(AnyModule(TwoImpl<Tensor>())), std::nullopt);
}

std::string argument_refusal(AnyModule layer, int64_t begins) {
  return refusal<c10::TypeError>([&] { check_argument(layer, "layer 2 ('x')", begins); });
}

TEST(ValueTest, ALayerTakesExactlyOneArgumentWhereverItIs) {
  for (int64_t begins : {-1, 0, 3}) {
    EXPECT_THAT(argument_refusal(AnyModule(TwoImpl<Tensor>()), begins),
                AllOf(StartsWith("layer 2 ('x')"), HasSubstr("TwoImpl<Tensor>"),
                      HasSubstr("takes 2 arguments")));
    EXPECT_THAT(argument_refusal(AnyModule(NoneImpl()), begins), HasSubstr("takes 0 arguments"));
    EXPECT_EQ(argument_refusal(AnyModule(OptionalImpl()), begins), "") << "one argument is enough";
    EXPECT_EQ(argument_refusal(taking<Tensor>(), begins), "");
    EXPECT_EQ(argument_refusal(taking<Tuple4>(), begins), "");
  }
}

TEST(ValueTest, OnlyTheFirstLayerOfAPartitionMustTakeATypeThatTravels) {
  EXPECT_EQ(argument_refusal(taking<Own>(), -1), "");
  EXPECT_THAT(argument_refusal(taking<Own>(), 0),
              AllOf(StartsWith("layer 2 ('x')"), HasSubstr("type gpipe::internal::Own,"),
                    HasSubstr("partition 0"), Not(HasSubstr("move the cut"))));
  EXPECT_THAT(argument_refusal(taking<std::tuple<Tensor>>(), 1),
              AllOf(HasSubstr("type std::tuple<Tensor>,"), HasSubstr("partition 1"),
                    HasSubstr("move the cut")));
}

TEST(ValueTest, TypesAreReadable) {
  EXPECT_EQ(readable_type(typeid(int)), "int");
  EXPECT_EQ(readable_type(typeid(Tensor)), "Tensor");
  EXPECT_EQ(readable_type(typeid(Tensors)), "std::vector<Tensor>");
  EXPECT_EQ(readable_type(typeid(std::string)), "std::string");
  EXPECT_EQ(readable_type(typeid(Own)), "gpipe::internal::Own");
  using Map = std::map<std::string, std::vector<std::vector<int>>>;
  EXPECT_EQ(readable_type(typeid(Map)), "std::map<std::string, std::vector<std::vector<int>>>");
  using Hashed = std::unordered_map<std::string, Tensor>;
  EXPECT_EQ(readable_type(typeid(Hashed)), "std::unordered_map<std::string, Tensor>");
  const std::string cut = readable_type(typeid(std::tuple<Tuple4, Tuple4, Tuple4>));
  EXPECT_THAT(cut, AllOf(StartsWith("std::tuple<std::tuple<Tensor, Tensor"), EndsWith("...")));
  EXPECT_LT(cut.size(), 90u);
}

TEST(ValueTest, TakesTheNumberOfTensorsThatTheKindHas) {
  const std::vector<std::pair<ValueKind, size_t>> numbers = {{ValueKind::kTensor, 1},
                                                             {ValueKind::kTuple2, 2},
                                                             {ValueKind::kTuple3, 3},
                                                             {ValueKind::kTuple4, 4}};
  for (const auto& [kind, number] : numbers) {
    const Tensors tensors = some(number);
    const Value value = shape_as(kind, tensors, "the model");
    EXPECT_EQ(value.kind, kind);
    EXPECT_THAT(value.tensors, EqualsBitwise(tensors));
    for (size_t other : {number - 1, number + 1}) {
      EXPECT_THAT(refusal<c10::ValueError>([&] { (void)shape_as(kind, some(other), "the model"); }),
                  AllOf(HasSubstr("the model takes a " + std::string(to_text(kind)) + ","),
                        HasSubstr(std::to_string(other) + " tensors were given")));
    }
  }
  for (size_t number : {0, 1, 5}) {
    EXPECT_EQ(shape_as(ValueKind::kTensors, some(number), "the model").tensors.size(), number);
  }
}

}  // namespace
}  // namespace gpipe::internal
