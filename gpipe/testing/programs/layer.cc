#include "gpipe/testing/programs/layer.h"

#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>

#include <regex>
#include <tuple>

#include "gpipe/internal/tensors/value.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::testing::programs {
namespace {

using at::Tensor;

template <typename T>
struct Type {
  using type = T;
};

template <typename... T>
Tensors to_list(std::tuple<T...> value) {
  return std::apply([](auto&&... tensor) { return Tensors{std::move(tensor)...}; },
                    std::move(value));
}
Tensors to_list(Tensors value) { return value; }
Tensors to_list(Tensor value) {
  Tensors result;
  result.push_back(std::move(value));
  return result;
}

template <size_t... I>
auto to_tuple(Tensors list, std::index_sequence<I...>) {
  return std::make_tuple(std::move(list[I])...);
}

// The size is checked because in a program with layers left out a list may be too short.
void check_size(const Tensors& list, size_t size) {
  TORCH_CHECK_VALUE(list.size() == size, "a layer has ", list.size(), " values instead of ", size);
}

template <typename T>
T from_list(Tensors list) {
  if constexpr (std::is_same_v<T, Tensors>) {
    return list;
  } else if constexpr (std::is_same_v<T, Tensor>) {
    check_size(list, 1);
    return std::move(list[0]);
  } else {
    check_size(list, std::tuple_size_v<T>);
    return to_tuple(std::move(list), std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

template <typename F>
auto with_type(ValueKind kind, F f) {
  switch (kind) {
    case ValueKind::kTensor:
      return f(Type<Tensor>());
    case ValueKind::kTuple2:
      return f(Type<std::tuple<Tensor, Tensor>>());
    case ValueKind::kTuple3:
      return f(Type<std::tuple<Tensor, Tensor, Tensor>>());
    case ValueKind::kTuple4:
      return f(Type<std::tuple<Tensor, Tensor, Tensor, Tensor>>());
    case ValueKind::kTensors:
      break;
  }
  return f(Type<Tensors>());
}

}  // namespace

int64_t pick(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

bool once_in(Random& random, int64_t count) { return pick(random, 1, count) == 1; }

Tensor Workshop::tied_parameter(int64_t number, at::IntArrayRef shape) {
  auto [entry, fresh] = tied.try_emplace(number);
  if (fresh) entry->second = at::randn(shape).mul_(0.5).requires_grad_();
  return entry->second;
}

torch::nn::AnyModule function_module(ValueKind in, ValueKind out, Body body) {
  return with_type(in, [&](auto in_type) {
    using In = typename decltype(in_type)::type;
    return with_type(out, [&](auto out_type) {
      using Out = typename decltype(out_type)::type;
      return torch::nn::AnyModule(layer<In, Out>([body = std::move(body)](In in) -> Out {
        return from_list<Out>(body(to_list(std::move(in))));
      }));
    });
  });
}

ValueKind pick_kind(Random& random, size_t count) {
  if (count == 1) return ValueKind::kTensor;
  if (count > 4 || once_in(random, 2)) return ValueKind::kTensors;
  return count == 2 ? ValueKind::kTuple2 : count == 3 ? ValueKind::kTuple3 : ValueKind::kTuple4;
}

std::string with_numbers(std::string text, int64_t channels, int64_t last, int64_t width) {
  const std::pair<const char*, int64_t> numbers[] = {
      {"channels", channels}, {"last", last}, {"width", width}};
  for (const auto& [name, number] : numbers) {
    text = std::regex_replace(text, std::regex("\\b" + std::string(name) + "\\b(?! =|\\()"),
                              std::to_string(number));
  }
  return text;
}

std::string shape_text(at::IntArrayRef shape) {
  std::string result = "{";
  for (int64_t size : shape) result += (result.size() == 1 ? "" : ", ") + std::to_string(size);
  return result + "}";
}

std::string argument_text(ValueKind kind) {
  return kind == ValueKind::kTensor ? "Tensor x" : std::string(internal::to_text(kind)) + " v";
}

}  // namespace gpipe::testing::programs
