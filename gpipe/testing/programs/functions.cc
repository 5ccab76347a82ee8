// Draws layers that are functions of the main value and of other values.

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <iterator>
#include <thread>

#include "gpipe/checkpoint.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/testing/programs/catalog.h"
#include "gpipe/testing/programs/expression.h"
#include "tied/tied_layer.h"

namespace gpipe::testing::programs {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Sleeps for a random time. This affects timing only: no result depends on the numbers that a
// thread draws here.
void sleep_a_little() {
  thread_local Random random(std::hash<std::thread::id>()(std::this_thread::get_id()));
  std::this_thread::sleep_for(std::chrono::microseconds(pick(random, 0, 300)));
}

// Custom autograd functions.

struct SlowBackward : Function<SlowBackward> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.view_as(x); }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    sleep_a_little();
    return gradients;
  }
};

Tensor sleep(const Tensor& x) {
  sleep_a_little();
  return SlowBackward::apply(x);
}

struct Square : Function<Square> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * 2 * context->get_saved_variables()[0]};
  }
};

struct SavedOutput : Function<SavedOutput> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    Tensor y = x.tanh();
    context->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor y = context->get_saved_variables()[0];
    return {gradients[0] * (1 - y * y)};
  }
};

// Its forward returns the input itself, and its backward reverses the gradient's sign.
struct ReversedGradient : Function<ReversedGradient> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0] * -0.5};
  }
};

struct View : Function<View> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.view(x.sizes()); }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0] * 2};
  }
};

struct HalveInPlace : Function<HalveInPlace> {
  static Tensor forward(AutogradContext* context, Tensor x) {
    x.mul_(0.5);
    context->mark_dirty({x});
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0] * 0.5};
  }
};

struct Scaled : Function<Scaled> {  // a function with a parameter
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& a) {
    context->save_for_backward({x, a});
    return x * a;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum().reshape(saved[1].sizes())};
  }
};

// The options of an integer tensor on x's device.
at::TensorOptions indices(const Tensor& x) { return x.options().dtype(at::kLong); }

// A vector of shape (rows), reshaped to (rows, 1, ...) to match x.
Tensor column(const Tensor& s, const Tensor& x) {
  std::vector<int64_t> sizes(x.dim(), 1);
  sizes[0] = x.size(0);
  return s.reshape(sizes);
}

// The mean of each row, as a column.
Tensor row_means(const Tensor& s, const Tensor& x) {
  return column(s.flatten(1).to(x.scalar_type()).mean(1), x);
}

Tensor with_halved_gradient(Tensor x) {
  if (x.requires_grad()) x.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
  return x;
}

// Writes into the gradient, although other tensors may have the same memory and LibTorch advises
// against it, because some users do so.
void scale_in_place(const Tensor& gradient) { gradient.mul_(1.5); }

bool can_be_written(const Tensor& gradient) {
  return gradient.defined() && at::has_internal_overlap(gradient) != at::MemOverlap::Yes;
}

Tensor with_gradient_scaled_in_place(Tensor x) {
  if (!x.requires_grad()) return x;
  x.register_hook([](const Tensor& gradient) {
    if (can_be_written(gradient)) scale_in_place(gradient);
  });
  return x;
}

struct ScaleGradientInPlace : Function<ScaleGradientInPlace> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x * 1; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    if (can_be_written(gradients[0])) scale_in_place(gradients[0]);
    return gradients;
  }
};

// Scales its gradient in place, and gives both arguments the same gradient tensor.
struct AddAndScaleInPlace : Function<AddAndScaleInPlace> {
  static Tensor forward(AutogradContext*, const Tensor& x, const Tensor& y) { return x + y; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    if (can_be_written(gradients[0])) scale_in_place(gradients[0]);
    return {gradients[0], gradients[0]};
  }
};

enum Dimensions : uint32_t { k1 = 1, k2 = 2, k3 = 4, kAny = 7 };

enum Flags : uint32_t {
  kFresh = 1,
  kInPlace = 2,
  kSaves = 4,   // saves x for its backward
  kSame = 8,    // returns x itself
  kAlias = 16,  // returns a view of x
};

// The shapes of parameters.
enum class Shape : uint8_t {
  kNone,
  kSample,    // the shape of a row of x
  kOneRow,    // the shape of a row of x after a dimension of 1: {1, ...}
  kChannels,  // {channels}
  kLast,      // {last}
  kOne,       // {1}
  kScalar,    // {}
  kSquare,    // {last, last}
  kWide,      // {last, width}
  kTable,     // {8, last}
};

std::vector<int64_t> shape_of(Shape shape, const Tensor& x, int64_t width) {
  std::vector<int64_t> sample = x.sizes().slice(1).vec();
  switch (shape) {
    case Shape::kOneRow:
      sample.insert(sample.begin(), 1);
      return sample;
    case Shape::kChannels:
      return {x.size(1)};
    case Shape::kLast:
      return {x.size(-1)};
    case Shape::kOne:
      return {1};
    case Shape::kScalar:
      return {};
    case Shape::kSquare:
      return {x.size(-1), x.size(-1)};
    case Shape::kWide:
      return {x.size(-1), width};
    case Shape::kTable:
      return {8, x.size(-1)};
    default:
      return sample;
  }
}

struct Entry {
  uint32_t dimensions;
  uint32_t flags;
  Shape a;
  Shape b;
  const char* text;
  Tensor (*compute)(Tensor x, Tensor s, Tensor a, Tensor b, int64_t channels, int64_t last,
                    int64_t width);
};

// The text of an expression and its function, so that each is written once.
#define GPIPE_EXPRESSION(...)                                                        \
#__VA_ARGS__, []([[maybe_unused]] Tensor x, [[maybe_unused]] Tensor s,             \
                   [[maybe_unused]] Tensor a, [[maybe_unused]] Tensor b,             \
                   [[maybe_unused]] int64_t channels, [[maybe_unused]] int64_t last, \
                   [[maybe_unused]] int64_t width) -> Tensor { return __VA_ARGS__; }

constexpr Shape kNone = Shape::kNone;

const Entry kFunctions[] = {
    // Operators.
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x * 0.5)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* x)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + x.sin())},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(1 - x)},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION((x * 0.3).exp())},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x / (x.abs() + 1))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x - x.mean(-1, true))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x.clamp(-1, 1))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x.detach() + x)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x*(x.detach() > 0))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* x.detach().sigmoid())},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(at::where(x > 0, x, x * 0.2))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x.masked_fill(x < -0.5, 0))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* at::ones_like(x).triu())},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + at::randn_like(x) * 0.1)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* at::bernoulli(at::full_like(x, 0.5)))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.cumsum(-1))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(std::get<0>(x.sort(-1)))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(std::get<0>(x.topk(2, -1)))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.gather(1, at::argsort(x, 1, false)))},
    {kAny, 0, kNone, kNone,
     GPIPE_EXPRESSION(x.index_select(-1, at::arange(last - 1, -1, -1, indices(x))))},
    {k2, 0, kNone, kNone, GPIPE_EXPRESSION(at::bmm(x, x.transpose(1, 2)) * 0.2)},
    {k2, 0, kNone, kNone, GPIPE_EXPRESSION(at::scaled_dot_product_attention(x, x, x))},
    {k2 | k3, 0, kNone, kNone, GPIPE_EXPRESSION(x.mean(-1))},
    {k2 | k3, 0, kNone, kNone, GPIPE_EXPRESSION(x.sum(1))},
    {k2 | k3, 0, kNone, kNone, GPIPE_EXPRESSION(std::get<0>(x.max(-1)))},
    // Views.
    {k2 | k3, 0, kNone, kNone, GPIPE_EXPRESSION(x.transpose(1, -1))},
    {k2, 0, kNone, kNone, GPIPE_EXPRESSION(x.transpose(1, 2).contiguous())},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.narrow(1, 1, channels - 1))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.narrow(-1, 0, 2))},
    {k2, 0, kNone, kNone, GPIPE_EXPRESSION(x.select(1, 0))},
    {k2 | k3, 0, kNone, kNone, GPIPE_EXPRESSION(x.reshape({x.size(0), -1}))},
    {k1, 0, kNone, kNone, GPIPE_EXPRESSION(x.view({x.size(0), -1, 2}))},
    {k1, 0, kNone, kNone, GPIPE_EXPRESSION(x.unsqueeze(1))},
    {k1, 0, kNone, kNone, GPIPE_EXPRESSION(x.unsqueeze(1).expand({-1, 2, -1}))},
    {k2, 0, kNone, kNone, GPIPE_EXPRESSION(x.unsqueeze(1).expand({-1, 2, -1, -1}))},
    {k2, 0, kNone, kNone, GPIPE_EXPRESSION(x.unsqueeze(-1).squeeze(-1))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.view_as(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.flip(-1))},
    {kAny, kFresh, kNone, kNone,
     GPIPE_EXPRESSION(at::cat({x.chunk(2, -1).at(1), x.chunk(2, -1).at(0)}, -1))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(at::cat({x, x.sin()}, 1))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(at::stack(x.unbind(1), 1))},
    {k1, kFresh, kNone, kNone, GPIPE_EXPRESSION(at::stack({x, x * 2}, 1))},
    {kAny, kSame, kNone, kNone, GPIPE_EXPRESSION(x)},
    // Operators that work in place.
    {kAny, kInPlace, kNone, kNone, GPIPE_EXPRESSION(x.relu_())},
    {kAny, kInPlace, kNone, kNone, GPIPE_EXPRESSION(x.tanh_())},
    {kAny, kInPlace | kFresh, kNone, kNone, GPIPE_EXPRESSION(x.mul_(0.5))},
    {kAny, kInPlace | kFresh, kNone, kNone, GPIPE_EXPRESSION(x.add_(1))},
    {kAny, kInPlace | kFresh, Shape::kLast, kNone, GPIPE_EXPRESSION(x.add_(a))},
    {kAny, kInPlace | kFresh, Shape::kLast, kNone, GPIPE_EXPRESSION(x.add_(a, 0.5).mul_(2))},
    {kAny, kInPlace | kFresh, kNone, kNone, GPIPE_EXPRESSION((x.narrow(-1, 0, 1).mul_(2), x))},
    {kAny, kInPlace | kFresh, kNone, kNone, GPIPE_EXPRESSION((x.select(1, 0).zero_(), x))},
    {kAny, kInPlace | kFresh, kNone, kNone,
     GPIPE_EXPRESSION((x.select(1, 0).copy_(x.select(1, 1) * 2), x))},
    {kAny, kInPlace | kFresh, kNone, kNone, GPIPE_EXPRESSION(x.masked_fill_(x < 0, 0.1))},
    {kAny, kInPlace | kFresh, kNone, kNone, GPIPE_EXPRESSION(HalveInPlace::apply(x))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION((x * 1).relu_() * 2)},
    // Parameters.
    {kAny, kFresh, Shape::kSample, kNone, GPIPE_EXPRESSION(x + a.unsqueeze(0))},
    {kAny, kFresh, Shape::kSample, kNone, GPIPE_EXPRESSION(x + a)},
    {kAny, kFresh, Shape::kOneRow, kNone, GPIPE_EXPRESSION(x + a)},
    {kAny, kFresh, Shape::kOneRow, Shape::kSample, GPIPE_EXPRESSION(x + a + b)},
    {kAny, kFresh, Shape::kSample, Shape::kSample,
     GPIPE_EXPRESSION(x + a.unsqueeze(0) + b.unsqueeze(0))},
    {kAny, kFresh, Shape::kSample, kNone, GPIPE_EXPRESSION(x* a.unsqueeze(0).expand_as(x))},
    {kAny, kFresh, Shape::kOneRow, kNone, GPIPE_EXPRESSION(x* a.expand_as(x))},
    {kAny, kFresh, Shape::kOne, kNone, GPIPE_EXPRESSION(x* a)},
    {kAny, kFresh, Shape::kScalar, kNone, GPIPE_EXPRESSION(x* a)},
    {kAny, kFresh, Shape::kScalar, Shape::kLast, GPIPE_EXPRESSION(x* a + b)},
    {kAny, kFresh, Shape::kLast, kNone, GPIPE_EXPRESSION(x* a + a)},
    {kAny, kFresh, Shape::kLast, kNone, GPIPE_EXPRESSION(x* a.softmax(0))},
    {kAny, kFresh, Shape::kWide, kNone, GPIPE_EXPRESSION(at::matmul(x, a))},
    {kAny, kFresh, Shape::kSquare, kNone, GPIPE_EXPRESSION(at::matmul(x, a.t()))},
    {kAny, kFresh, Shape::kSquare, kNone, GPIPE_EXPRESSION(at::matmul(x, (a + a.t()) * 0.5))},
    {kAny, kFresh, Shape::kSquare, kNone, GPIPE_EXPRESSION(at::matmul(x, a / a.norm()))},
    {kAny, kFresh, Shape::kSquare, Shape::kSquare,
     GPIPE_EXPRESSION(at::matmul(x, at::matmul(a, b)))},
    {kAny, kFresh, Shape::kSquare, Shape::kLast, GPIPE_EXPRESSION(at::linear(x, a.tanh(), b))},
    {k1, kFresh, Shape::kSquare, Shape::kLast, GPIPE_EXPRESSION(at::addmm(b, x, a))},
    {kAny, kFresh, Shape::kSquare, kNone, GPIPE_EXPRESSION(x + at::matmul(x.tanh(), a))},
    {kAny, kFresh, Shape::kTable, kNone,
     GPIPE_EXPRESSION(x + at::embedding(a, at::arange(channels, indices(x))).mean(0))},
    {k2, kFresh, Shape::kTable, kNone,
     GPIPE_EXPRESSION(x + at::embedding(a, at::arange(channels, indices(x)).remainder(8)))},
    {k2, kFresh, Shape::kTable, kNone, GPIPE_EXPRESSION(x + a.narrow(0, 0, channels).unsqueeze(0))},
    {k2, kFresh, Shape::kLast, kNone,
     GPIPE_EXPRESSION(at::cat({a.expand({x.size(0), 1, -1}), x}, 1))},
    {kAny, kFresh, Shape::kLast, kNone, GPIPE_EXPRESSION(at::layer_norm(x, {last}, a))},
    {kAny, kFresh, Shape::kLast, kNone, GPIPE_EXPRESSION(at::lerp(x, x.sin(), a.sigmoid()))},
    {k1, kFresh, Shape::kSquare, kNone, GPIPE_EXPRESSION(at::cdist(x, a))},
    // Custom functions, hooks, and delays.
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(Square::apply(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(SavedOutput::apply(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(ReversedGradient::apply(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(View::apply(x))},
    {kAny, kFresh, Shape::kOne, kNone, GPIPE_EXPRESSION(Scaled::apply(x, a))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(with_halved_gradient(x * 2))},
    // The hook is on a view, because a hook on x itself, behind a cut, would see the gradient of
    // one route only.
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(with_halved_gradient(x.view_as(x)))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(sleep(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(sleep(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(sleep(x))},
    // These entries stand for user code that writes into its gradient, whose memory other tensors
    // may share (writes_gradients()).
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(with_gradient_scaled_in_place(x * 2))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(with_gradient_scaled_in_place(x.view_as(x)))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(ScaleGradientInPlace::apply(x))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(AddAndScaleInPlace::apply(x, x.sin()))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + with_gradient_scaled_in_place(x * 0.5))},
    {kAny, kFresh, Shape::kSquare, Shape::kSquare,
     GPIPE_EXPRESSION(with_gradient_scaled_in_place(at::matmul(x, a)) +
                      at::matmul(at::ones_like(x), b))},
    {kAny, kFresh, Shape::kSquare, Shape::kSquare,
     GPIPE_EXPRESSION(at::matmul(at::ones_like(x), b) +
                      with_gradient_scaled_in_place(at::matmul(x, a)))},
    {kAny, kFresh, Shape::kSquare, Shape::kSample,
     GPIPE_EXPRESSION(ScaleGradientInPlace::apply(at::matmul(x, a)) +
                      with_gradient_scaled_in_place(at::ones_like(x) * b))},
};

// Expressions that consume another value `s`.
const Entry kUsesOfFloats[] = {
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + s)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + s)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* s)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + s * s)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(at::cat({x, s}, 1))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(at::where(x > 0, x, s))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + row_means(s, x))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + row_means(s, x))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* row_means(s, x).tanh())},
    {kAny, kFresh, Shape::kLast, kNone, GPIPE_EXPRESSION(x + row_means(s, x) * a)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* s.mean())},
    {kAny, kInPlace | kFresh, kNone, kNone, GPIPE_EXPRESSION(x.add_(row_means(s, x)))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x)},
};
const Entry kUsesOfIntegers[] = {
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + row_means(s.remainder(5), x) * 0.1)},
    {kAny, kFresh, Shape::kTable, kNone,
     GPIPE_EXPRESSION(x + column(at::embedding(a, s.flatten(1).sum(1).remainder(8)).mean(1), x))},
    {k1, 0, kNone, kNone, GPIPE_EXPRESSION(x.gather(1, s.flatten(1).remainder(channels)))},
    {k1, 0, kNone, kNone,
     GPIPE_EXPRESSION(x.scatter_add(1, s.flatten(1).narrow(1, 0, 1).remainder(channels),
                                    x.sin().narrow(1, 0, 1)))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x)},
};
const Entry kUsesOfMasks[] = {
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(at::where(s, x, x * 0.5))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x.masked_fill(s, 0))},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x* s)},
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(x + row_means(s, x))},
};
const Entry kUsesOfUndefined[] = {
    {kAny, kFresh, kNone, kNone, GPIPE_EXPRESSION(s.defined() ? x + s : x * 2)},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x)},
};

// Expressions in which the gradients of a and b are one tensor, or views of one tensor.
const Entry kSharedGradients[] = {
    {kAny, kFresh, Shape::kSample, Shape::kSample, GPIPE_EXPRESSION(x + at::stack({a, b}).sum(0))},
    {kAny, kFresh, Shape::kLast, Shape::kLast, GPIPE_EXPRESSION(x* at::stack({a, b}).sum(0))},
    {kAny, kFresh, Shape::kOneRow, Shape::kOneRow, GPIPE_EXPRESSION(x + at::cat({a, b}).sum(0))},
    {kAny, kFresh, Shape::kLast, Shape::kLast, GPIPE_EXPRESSION(x + (a + b))},
    {kAny, kFresh, Shape::kScalar, Shape::kScalar, GPIPE_EXPRESSION(x*(a - b).abs())},
};

// Expressions that make another value from x, which is passed on beside x.
const Entry kExtras[] = {
    {kAny, kSaves, kNone, kNone, GPIPE_EXPRESSION(x.sin())},
    {kAny, kSaves, Shape::kSample, kNone, GPIPE_EXPRESSION(x* a)},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x * 0.5)},
    {kAny, kSame, kNone, kNone, GPIPE_EXPRESSION(x)},
    {kAny, kSame, kNone, kNone, GPIPE_EXPRESSION(x)},
    {kAny, kAlias, kNone, kNone, GPIPE_EXPRESSION(x.narrow(-1, 0, 2))},
    {kAny, kAlias, kNone, kNone, GPIPE_EXPRESSION(x.view_as(x))},
    {kAny, kAlias, kNone, kNone, GPIPE_EXPRESSION(x.detach())},
    {kAny, kAlias, kNone, kNone, GPIPE_EXPRESSION(with_gradient_scaled_in_place(x.view_as(x)))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(ScaleGradientInPlace::apply(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.detach() * 2)},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.flatten(1).mean(1, true))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x > 0)},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION((x > 0).to(x.scalar_type()))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(at::ones({x.size(0), 1}, x.options()))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(at::full_like(x, 0.5))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(at::rand_like(x))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(at::arange(x.size(0), indices(x)).unsqueeze(1))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(x.flatten(1).argmax(1, true))},
    {kAny, 0, kNone, kNone, GPIPE_EXPRESSION(Tensor())},
    {kAny, 0, Shape::kLast, kNone, GPIPE_EXPRESSION(a.expand({x.size(0), -1}))},
    {kAny, 0, Shape::kLast, kNone, GPIPE_EXPRESSION(a* at::ones({x.size(0), 1}, x.options()))},
};

Expression expression(const Entry& entry, const State& state, Random& random) {
  const Tensor& x = state.main();
  const int64_t channels = x.size(1);
  const int64_t last = x.size(-1);
  const int64_t width = 2 * pick(random, 1, 3);
  Expression result;
  result.text = with_numbers(entry.text, channels, last, width);
  result.compute = [f = entry.compute, channels, last, width](Tensor x, Tensor s, Tensor a,
                                                              Tensor b) {
    return f(std::move(x), std::move(s), std::move(a), std::move(b), channels, last, width);
  };
  for (Shape shape : {entry.a, entry.b}) {
    if (shape == kNone) continue;
    Parameter parameter;
    parameter.shape = shape_of(shape, x, width);
    parameter.frozen = once_in(random, 12);
    if (!parameter.frozen && once_in(random, 4)) {
      for (size_t k = 0; k < state.tied_shapes.size(); ++k) {
        if (state.tied_shapes[k] == parameter.shape) parameter.tied = static_cast<int64_t>(k);
      }
      // If no tied parameter of this shape exists, this one gets the next number. Later layers may
      // use it, too (see draw_function).
      if (parameter.tied < 0) parameter.tied = static_cast<int64_t>(state.tied_shapes.size());
    }
    result.parameters.push_back(std::move(parameter));
  }
  // Two tied parameters that are both new have got the same number. If their shapes differ, the
  // second one is not tied.
  if (result.parameters.size() == 2 && result.parameters[1].tied >= 0 &&
      result.parameters[0].tied == result.parameters[1].tied &&
      result.parameters[0].shape != result.parameters[1].shape) {
    result.parameters[1].tied = -1;
  }
  result.in_place = (entry.flags & kInPlace) != 0;
  result.fresh = (entry.flags & kFresh) != 0;
  result.keeps_fresh = (entry.flags & kSaves) == 0;
  result.same = (entry.flags & kSame) != 0;
  result.alias = (entry.flags & (kSame | kAlias)) != 0;
  if (result.same) result.fresh = state.fresh;
  return result;
}

template <size_t N>
const Entry& any_of(const Entry (&entries)[N], Random& random) {
  return entries[pick(random, 0, N - 1)];
}

std::function<void(State&)> note_tied(const std::vector<Parameter>& parameters) {
  return [parameters](State& state) {
    for (const Parameter& parameter : parameters) {
      if (parameter.tied == static_cast<int64_t>(state.tied_shapes.size())) {
        state.tied_shapes.push_back(parameter.shape);
      }
    }
  };
}

// Replaces x with the expression's result; `s` is values[index], erased afterwards if `erase`.
Layer expression_layer(const State& state, const Expression& expression, size_t index, bool erase,
                       ValueKind out) {
  Layer layer;
  const bool alone = state.kind == ValueKind::kTensor;
  const std::string s = "v[" + std::to_string(index) + "]";
  layer.text = parameters_text(expression.parameters) + "(" + argument_text(state.kind) + ") { ";
  if (alone) {
    layer.text += "return " + expression.text + "; }";
  } else {
    layer.text +=
        (index == 0 ? "auto& x = v[0]; x = " : "auto& x = v[0]; Tensor s = " + s + "; x = ") +
        expression.text + "; " + (erase ? "v.erase(" + s + "); " : "") +
        (out == ValueKind::kTensor ? "return x; }"
                                   : std::string("return ") + internal::to_text(out) + "(v); }");
  }
  layer.make = [=](Workshop& workshop) {
    const LayerParameters parameters = make_parameters(expression.parameters, workshop);
    torch::nn::AnyModule module = function_module(state.kind, out, [=](Tensors v) {
      Tensor s = index == 0 ? Tensor() : v.at(index);
      if (erase) v.erase(v.begin() + static_cast<int64_t>(index));
      v[0] = expression.compute(std::move(v[0]), std::move(s),
                                parameters->empty() ? Tensor() : parameters->at(0),
                                parameters->size() < 2 ? Tensor() : parameters->at(1));
      return v;
    });
    register_parameters(*module.ptr(), parameters, expression.parameters, workshop);
    return module;
  };
  layer.in_place = expression.in_place;
  layer.fresh = expression.fresh;
  return layer;
}

// A layer that uses parameters that it has not registered. It names them to the pipeline
// (TiedLayer).
struct TiedUse : torch::nn::Module, TiedLayer {
  TiedUse(LayerParameters parameters, std::vector<size_t> named)
      : parameters(std::move(parameters)), named(std::move(named)) {}
  std::vector<Tensor> tied_parameters() const override {
    std::vector<Tensor> tied;
    for (const size_t k : named) tied.push_back(parameters->at(k));
    return tied;
  }
  void use_tied_parameters(const std::vector<Tensor>& those) override {
    for (size_t k = 0; k < named.size(); ++k) parameters->at(named[k]) = those.at(k);
  }
  LayerParameters parameters;
  std::vector<size_t> named;
};

// A layer that keeps state in a buffer and changes it in each forward, as users' layers do. Some of
// these layers ask whether they are being recomputed. For the others the pipeline restores the
// buffer.
Layer with_state(Random& random) {
  struct State {
    const char* text;
    bool asks;
    bool counts;  // whether the state only counts calls
    int64_t size;
    double use;  // how much of the state goes into the output
  };
  static constexpr State kStates[] = {
      {"if (!is_recomputing()) m.mul_(0.9).add_(x.detach().mean(), 0.1); return x * 1;", true,
       false, 1, 0},
      {"m.mul_(0.9).add_(x.detach().mean(), 0.1); return x * 1;", false, false, 1, 0},
      {"m.add_(1); return x * 1;", false, true, 1, 0},
      {"m.mul_(0.9).add_(x.detach().mean(), 0.1); return x + 1e-5 * m.clone().select(0, 0);", false,
       false, 1, 1e-5},
      {"m.mul_(0.9).add_(x.detach().mean(), 0.1); return x * m.clone().select(0, 0);", false, false,
       2000, 1},
  };
  const State& state = kStates[pick(random, 0, std::size(kStates) - 1)];
  Layer layer;
  layer.text =
      "[m = buffer({" + std::to_string(state.size) + "})](Tensor x) { " + state.text + " }";
  layer.make = [state](Workshop&) {
    const Tensor buffer = at::zeros({state.size});
    torch::nn::AnyModule module =
        function_module(ValueKind::kTensor, ValueKind::kTensor, [buffer, state](Tensors v) {
          if (!state.asks || !is_recomputing()) {
            c10::NoGradGuard no_grad;
            if (state.counts) {
              buffer.add_(1);
            } else {
              buffer.mul_(0.9).add_(v[0].detach().mean(), 0.1);
            }
          }
          if (state.use == 0) {
            v[0] = v[0] * 1;
          } else if (state.use == 1) {
            v[0] = v[0] * buffer.clone().select(0, 0);
          } else {
            v[0] = v[0] + buffer.clone().select(0, 0) * state.use;
          }
          return v;
        });
    module.ptr()->register_buffer("state", buffer);
    return module;
  };
  layer.fresh = true;
  return layer;
}

// A layer that counts the gradients that arrive at its output.
Layer counting_output_hook(int64_t counter) {
  Layer layer;
  layer.text =
      "[](Tensor x) { x = x * 1; if (x.requires_grad()) x.register_hook(count); return x; }";
  layer.make = [counter](Workshop& workshop) {
    auto& count = workshop.counters[counter];
    if (!count) count = std::make_shared<std::atomic<int64_t>>(0);
    return function_module(ValueKind::kTensor, ValueKind::kTensor, [count = count](Tensors v) {
      v[0] = v[0] * 1;
      if (v[0].requires_grad()) v[0].register_hook([count](const Tensor&) { ++*count; });
      return v;
    });
  };
  layer.fresh = true;
  return layer;
}

}  // namespace

std::string parameters_text(const std::vector<Parameter>& parameters) {
  std::string text = "[";
  for (size_t k = 0; k < parameters.size(); ++k) {
    const Parameter& p = parameters[k];
    text += std::string(k == 0 ? "" : ", ") + "ab"[k] + " = " +
            (p.tied >= 0 ? "tied_" + std::to_string(p.tied)
             : p.frozen  ? "frozen_parameter"
                         : "parameter") +
            "(" + shape_text(p.shape) + ")";
  }
  return text + "]";
}

LayerParameters make_parameters(const std::vector<Parameter>& parameters, Workshop& workshop) {
  auto result = std::make_shared<Tensors>();
  for (const Parameter& p : parameters) {
    result->push_back(p.tied >= 0 ? workshop.tied_parameter(p.tied, p.shape)
                                  : at::randn(p.shape).mul_(0.5).requires_grad_(!p.frozen));
  }
  return result;
}

void register_parameters(torch::nn::Module& module, const LayerParameters& tensors,
                         const std::vector<Parameter>& parameters, Workshop& workshop) {
  std::vector<size_t> named;
  for (size_t k = 0; k < tensors->size(); ++k) {
    const int64_t tied = parameters.at(k).tied;
    if (workshop.names_tied && tied >= 0 && !workshop.registered.insert(tied).second) {
      named.push_back(k);
      continue;
    }
    module.register_parameter(k == 0 ? "a" : "b", tensors->at(k), tensors->at(k).requires_grad());
  }
  if (!named.empty()) module.register_module("tied", std::make_shared<TiedUse>(tensors, named));
}

std::optional<Draw> draw_function(const State& state, Random& random) {
  if (state.kind == ValueKind::kTensor && once_in(random, 20)) {
    return Draw{with_state(random), nullptr};
  }
  if (state.kind == ValueKind::kTensor && once_in(random, 40)) {
    return Draw{counting_output_hook(state.next_number), [](State& after) { ++after.next_number; }};
  }
  const Entry& entry = any_of(kFunctions, random);
  if ((entry.dimensions & (1U << (state.main().dim() - 2))) == 0) return std::nullopt;
  const Expression chosen = expression(entry, state, random);
  if (chosen.in_place && !state.fresh) return std::nullopt;
  return Draw{expression_layer(state, chosen, 0, false, state.kind), note_tied(chosen.parameters)};
}

std::optional<Draw> draw_shared_gradients(const State& state, Random& random) {
  const Expression chosen = expression(any_of(kSharedGradients, random), state, random);
  return Draw{expression_layer(state, chosen, 0, false, state.kind), note_tied(chosen.parameters)};
}

std::optional<Expression> draw_use_of(const State& state, const Tensor& s, Random& random) {
  const Entry& entry = !s.defined()                   ? any_of(kUsesOfUndefined, random)
                       : s.is_floating_point()        ? any_of(kUsesOfFloats, random)
                       : s.scalar_type() == at::kBool ? any_of(kUsesOfMasks, random)
                                                      : any_of(kUsesOfIntegers, random);
  if ((entry.dimensions & (1U << (state.main().dim() - 2))) == 0) return std::nullopt;
  Expression chosen = expression(entry, state, random);
  if (chosen.in_place && !state.fresh) return std::nullopt;
  if (std::string(entry.text) == "x") chosen.fresh = state.fresh;
  return chosen;
}

Expression draw_extra(const State& state, Random& random) {
  return expression(any_of(kExtras, random), state, random);
}

std::optional<Draw> draw_use(const State& state, Random& random) {
  if (state.values.size() < 2) return std::nullopt;
  const size_t index = state.values.size() - 1;
  const std::optional<Expression> chosen = draw_use_of(state, state.values[index], random);
  if (!chosen) return std::nullopt;
  return Draw{expression_layer(state, *chosen, index, /*erase=*/true, pick_kind(random, index)),
              note_tied(chosen->parameters)};
}

std::optional<Draw> draw_values(const State& state, Random& random) {
  const size_t count = state.values.size();
  const int64_t what = pick(random, 0, 9);
  if (what <= 2 && count >= 2) {  // uses another value, which may travel on
    const size_t index = static_cast<size_t>(pick(random, 1, static_cast<int64_t>(count) - 1));
    const std::optional<Expression> chosen = draw_use_of(state, state.values[index], random);
    if (!chosen) return std::nullopt;
    const bool erase = once_in(random, 2);
    return Draw{expression_layer(state, *chosen, index, erase,
                                 erase ? pick_kind(random, count - 1) : state.kind),
                note_tied(chosen->parameters)};
  }
  if (what == 3 && count >= 2) {  // exchanges the main value and another one
    const size_t index = static_cast<size_t>(pick(random, 1, static_cast<int64_t>(count) - 1));
    const ValueKind out = pick_kind(random, count);
    Layer layer;
    layer.text = "[](" + argument_text(state.kind) + ") { std::swap(v[0], v[" +
                 std::to_string(index) + "]); return " + internal::to_text(out) + "(v); }";
    layer.make = [index, in = state.kind, out](Workshop&) {
      return function_module(in, out, [index](Tensors v) {
        std::swap(v.at(0), v.at(index));
        return v;
      });
    };
    return Draw{std::move(layer), nullptr};
  }
  if (count >= 5) return std::nullopt;
  const Expression chosen = draw_extra(state, random);
  const ValueKind out = pick_kind(random, count + 1);
  const bool on = once_in(random, 2);  // whether the next layer gets 2 * x instead of x
  Layer layer;
  layer.text = parameters_text(chosen.parameters) + "(" + argument_text(state.kind) + ") { " +
               (count == 1 ? "Tensors v{x}; " : "auto& x = v[0]; ") + "v.push_back(" + chosen.text +
               "); " + (on ? "v[0] = x * 2; " : "") + "return " + internal::to_text(out) + "(v); }";
  layer.make = [in = state.kind, out, chosen, on](Workshop& workshop) {
    const LayerParameters parameters = make_parameters(chosen.parameters, workshop);
    torch::nn::AnyModule module = function_module(in, out, [=](Tensors v) {
      v.push_back(
          chosen.compute(v[0], {}, parameters->empty() ? Tensor() : parameters->at(0), Tensor()));
      if (on) v[0] = v[0] * 2;
      return v;
    });
    register_parameters(*module.ptr(), parameters, chosen.parameters, workshop);
    return module;
  };
  layer.fresh = on || (state.fresh && chosen.keeps_fresh);
  layer.spreads = chosen.same && !on;
  layer.aliases = chosen.alias && !on;
  return Draw{std::move(layer), note_tied(chosen.parameters)};
}

}  // namespace gpipe::testing::programs
