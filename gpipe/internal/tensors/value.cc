#include "gpipe/internal/tensors/value.h"

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

// A type that no layer takes. A layer that is given this type refuses it before the layer's own
// code runs, with an error that names the type that it expects. LibTorch offers no other way to
// find out that type.
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

// LibTorch's error message when a layer is given a NoLayerTakesThis.
std::string refusal_of(torch::nn::AnyModule& layer) {
  try {
    layer.any_forward(NoLayerTakesThis{});
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// The part of `text` between `before` and `after`; nullopt if one of them does not occur.
std::optional<std::string> between(const std::string& text, const std::string& before,
                                   const std::string& after) {
  const size_t found = text.find(before);
  if (found == std::string::npos) return std::nullopt;
  const size_t begin = found + before.size();
  const size_t end = text.find(after, begin);
  if (end == std::string::npos) return std::nullopt;
  return text.substr(begin, end - begin);
}

// The demangled type that the layer expects as its argument.
std::optional<std::string> wanted_type(const std::string& refusal) {
  return between(refusal, "Expected argument #0 to be of type ", ", but received");
}

std::optional<ValueKind> kind_of(const std::string& demangled) {
  auto is = [&](const std::type_info& type) { return demangled == c10::demangle(type.name()); };
  if (is(typeid(Tensor))) return ValueKind::kTensor;
  if (is(typeid(Tensors))) return ValueKind::kTensors;
  if (is(typeid(Tuple2))) return ValueKind::kTuple2;
  if (is(typeid(Tuple3))) return ValueKind::kTuple3;
  if (is(typeid(Tuple4))) return ValueKind::kTuple4;
  return std::nullopt;
}

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t place = text.find(what); place != std::string::npos; place = text.find(what, place)) {
    text.replace(place, what.size(), with);
    place += with.size();
  }
}

// Removes every "<prefix>...>" up to its closing bracket.
void remove_templates(std::string& text, const std::string& prefix) {
  for (size_t place = text.find(prefix); place != std::string::npos;
       place = text.find(prefix, place)) {
    size_t end = place + prefix.size();
    for (int open = 1; open > 0 && end < text.size(); ++end) {
      open += text[end] == '<' ? 1 : text[end] == '>' ? -1 : 0;
    }
    text.erase(place, end - place);
  }
}

std::string readable(std::string demangled) {
  constexpr size_t kLongest = 80;
  replace_all(demangled, "std::__cxx11::", "std::");
  for (const char* argument : {"char_traits", "allocator", "less", "hash", "equal_to"}) {
    remove_templates(demangled, ", std::" + std::string(argument) + "<");
  }
  replace_all(demangled, " >", ">");
  replace_all(demangled, "std::basic_string<char>", "std::string");
  replace_all(demangled, "at::Tensor", "Tensor");
  replace_all(demangled, "(anonymous namespace)::", "");
  if (demangled.size() > kLongest) demangled.replace(kLongest, std::string::npos, "...");
  return demangled;
}

constexpr char kTravels[] = "Tensor, std::vector<Tensor> and std::tuple of two to four Tensors";

}  // namespace

std::string readable_type(const std::type_info& type) {
  return readable(c10::demangle(type.name()));
}

std::string readable_type(const torch::nn::AnyModule& layer) {
  return readable(layer.ptr()->name());
}

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
      false, "the last layer of a partition returned a value of type ",
      readable_type(value.type_info()), "; only ", kTravels,
      " can go on to the next partition, or out of the model: let the layer return its tensors as "
      "one of these");
}

std::vector<const Tensor*> tensors_in(AnyValue& value) {
  if (const auto* tensor = value.try_get<Tensor>()) return {tensor};
  std::vector<const Tensor*> found;
  if (const auto* list = value.try_get<Tensors>()) {
    for (const Tensor& tensor : *list) found.push_back(&tensor);
  }
  const auto add = [&](const auto* tuple) {
    if (tuple == nullptr) return;
    std::apply([&](const auto&... tensor) { (found.push_back(&tensor), ...); }, *tuple);
  };
  add(value.try_get<Tuple2>());
  add(value.try_get<Tuple3>());
  add(value.try_get<Tuple4>());
  return found;
}

std::optional<ValueKind> argument_kind(torch::nn::AnyModule& layer) {
  const std::optional<std::string> wanted = wanted_type(refusal_of(layer));
  return wanted ? kind_of(*wanted) : std::nullopt;
}

void check_argument(torch::nn::AnyModule& layer, const std::string& name, int64_t begins) {
  const std::string refusal = refusal_of(layer);
  const std::optional<std::string> arguments =
      between(refusal, "'s forward() method expects ", " argument(s)");
  TORCH_CHECK_TYPE(!arguments, name, ", a ", readable_type(layer), ", takes ", *arguments,
                   " arguments, but a layer of a pipeline is given exactly one: ", kTravels,
                   " are possible. Put gpipe::SeveralArguments around it "
                   "(gpipe/several_arguments.h), or a small module whose forward takes a "
                   "std::tuple or a std::vector<Tensor> and hands on its elements");
  const std::optional<std::string> wanted = wanted_type(refusal);
  TORCH_CHECK_TYPE(begins < 0 || !wanted || kind_of(*wanted), name, ", a ", readable_type(layer),
                   ", takes a value of type ", readable(*wanted),
                   ", but is the first layer of partition ", begins, ", which can be given only ",
                   kTravels, ": let it take one of these",
                   begins > 0 ? ", or move the cut to another place" : "");
}

Value shape_as(ValueKind kind, std::vector<Tensor> tensors, const std::string& taker) {
  if (kind != ValueKind::kTensors) {
    TORCH_CHECK_VALUE(tensors.size() == tuple_size(kind), taker, " takes a ", to_text(kind),
                      ", but ", tensors.size(), " tensors were given");
  }
  return {kind, std::move(tensors)};
}

}  // namespace gpipe::internal
