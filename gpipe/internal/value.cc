#include "gpipe/internal/value.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <tuple>
#include <utility>

namespace gpipe::internal {
namespace {

using at::Tensor;
using torch::nn::AnyValue;
using Tensors = std::vector<Tensor>;
using Tuple2 = std::tuple<Tensor, Tensor>;
using Tuple3 = std::tuple<Tensor, Tensor, Tensor>;
using Tuple4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// A type that no layer takes: handed to a layer, it is refused before the layer's code runs, with
// an error that names the type the layer wants. LibTorch offers no other way to learn it.
struct NoLayerTakesThis {};

template <typename Tuple>
Tensors list_of(Tuple tuple) {
  return std::apply([](auto&&... tensor) { return Tensors{std::move(tensor)...}; },
                    std::move(tuple));
}

template <typename Tuple, size_t... I>
AnyValue tuple_of(Tensors tensors, std::index_sequence<I...>) {
  return AnyValue(Tuple(std::move(tensors[I])...));
}

size_t tuple_size(ValueKind kind) {
  switch (kind) {
    case ValueKind::kTuple2:
      return 2;
    case ValueKind::kTuple3:
      return 3;
    case ValueKind::kTuple4:
      return 4;
    default:
      return 1;
  }
}

template <typename T>
bool names(const std::string& message) {
  return message.find(" to be of type " + c10::demangle(typeid(T).name()) + ", but") !=
         std::string::npos;
}

}  // namespace

const char* to_text(ValueKind kind) {
  switch (kind) {
    case ValueKind::kTensor:
      return "Tensor";
    case ValueKind::kTensors:
      return "std::vector<Tensor>";
    case ValueKind::kTuple2:
      return "std::tuple<Tensor, Tensor>";
    case ValueKind::kTuple3:
      return "std::tuple<Tensor, Tensor, Tensor>";
    case ValueKind::kTuple4:
      return "std::tuple<Tensor, Tensor, Tensor, Tensor>";
  }
  return "unknown";
}

AnyValue to_any(Value value) {
  switch (value.kind) {
    case ValueKind::kTensor:
      return AnyValue(std::move(value.tensors[0]));
    case ValueKind::kTuple2:
      return tuple_of<Tuple2>(std::move(value.tensors), std::make_index_sequence<2>());
    case ValueKind::kTuple3:
      return tuple_of<Tuple3>(std::move(value.tensors), std::make_index_sequence<3>());
    case ValueKind::kTuple4:
      return tuple_of<Tuple4>(std::move(value.tensors), std::make_index_sequence<4>());
    case ValueKind::kTensors:
      break;
  }
  return AnyValue(std::move(value.tensors));
}

Value from_any(AnyValue value) {
  if (auto* tensor = value.try_get<Tensor>()) {
    Value result;
    result.tensors.push_back(std::move(*tensor));
    return result;
  }
  if (auto* list = value.try_get<Tensors>()) return {ValueKind::kTensors, std::move(*list)};
  if (auto* tuple = value.try_get<Tuple2>())
    return {ValueKind::kTuple2, list_of(std::move(*tuple))};
  if (auto* tuple = value.try_get<Tuple3>())
    return {ValueKind::kTuple3, list_of(std::move(*tuple))};
  if (auto* tuple = value.try_get<Tuple4>())
    return {ValueKind::kTuple4, list_of(std::move(*tuple))};
  TORCH_CHECK_TYPE(
      false, "a layer at the end of a partition returned a value of type ",
      c10::demangle(value.type_info().name()),
      "; only Tensor, std::vector<Tensor> and std::tuple of two to four Tensors can go "
      "on to the next partition");
}

std::optional<ValueKind> argument_kind(torch::nn::AnyModule& layer) {
  try {
    layer.any_forward(NoLayerTakesThis{});
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (names<Tensor>(message)) return ValueKind::kTensor;
    if (names<Tensors>(message)) return ValueKind::kTensors;
    if (names<Tuple2>(message)) return ValueKind::kTuple2;
    if (names<Tuple3>(message)) return ValueKind::kTuple3;
    if (names<Tuple4>(message)) return ValueKind::kTuple4;
  }
  return std::nullopt;
}

Value shape_as(ValueKind kind, std::vector<Tensor> tensors, const std::string& taker) {
  if (kind != ValueKind::kTensors) {
    TORCH_CHECK_VALUE(tensors.size() == tuple_size(kind), taker, " takes a ", to_text(kind),
                      ", but ", tensors.size(), " tensors were given");
  }
  return {kind, std::move(tensors)};
}

}  // namespace gpipe::internal
