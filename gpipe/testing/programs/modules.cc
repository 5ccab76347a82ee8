// Draws layers from the modules of torch::nn.

#include <torch/nn/modules.h>

#include <cfenv>
#include <iterator>
#include <optional>
#include <utility>

#include "gpipe/internal/tensors/value.h"
#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/programs/catalog.h"

namespace gpipe::testing::programs {
namespace {

namespace nn = torch::nn;

using torch::Tensor;

// The numbers of dimensions after the rows that a module takes.
enum Dimensions : uint32_t { k1 = 1, k2 = 2, k3 = 4, kAny = 7 };

enum Flags : uint32_t {
  kFresh = 1,  // see Layer::fresh
  kInPlace = 2,
  kTwoRows = 4,
  kBatchNorm = 8,
};

struct LstmImpl : nn::Module {
  explicit LstmImpl(nn::LSTMOptions options)
      : lstm(register_module("lstm", nn::LSTM(options.batch_first(true)))) {}
  Tensor forward(Tensor x) { return std::get<0>(lstm(x)); }
  nn::LSTM lstm;
};
TORCH_MODULE(Lstm);

struct GruImpl : nn::Module {
  explicit GruImpl(nn::GRUOptions options)
      : gru(register_module("gru", nn::GRU(options.batch_first(true)))) {}
  Tensor forward(Tensor x) { return std::get<0>(gru(x)); }
  nn::GRU gru;
};
TORCH_MODULE(Gru);

struct RnnImpl : nn::Module {
  explicit RnnImpl(nn::RNNOptions options)
      : rnn(register_module("rnn", nn::RNN(options.batch_first(true)))) {}
  Tensor forward(Tensor x) { return std::get<0>(rnn(x)); }
  nn::RNN rnn;
};
TORCH_MODULE(Rnn);

// An LSTM whose output is its last hidden state.
struct LastStateImpl : nn::Module {
  LastStateImpl(int64_t in, int64_t out)
      : lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(in, out).batch_first(true)))) {}
  Tensor forward(Tensor x) { return std::get<0>(std::get<1>(lstm(x))).squeeze(0); }
  nn::LSTM lstm;
};
TORCH_MODULE(LastState);

struct LstmCellImpl : nn::Module {
  LstmCellImpl(int64_t in, int64_t out) : cell(register_module("cell", nn::LSTMCell(in, out))) {}
  Tensor forward(Tensor x) { return std::get<0>(cell(x)); }
  nn::LSTMCell cell;
};
TORCH_MODULE(LstmCell);

struct AttentionImpl : nn::Module {
  AttentionImpl(int64_t width, double dropout)
      : attention(register_module(
            "attention",
            nn::MultiheadAttention(nn::MultiheadAttentionOptions(width, 2).dropout(dropout)))) {}
  Tensor forward(Tensor x) {
    x = x.transpose(0, 1);
    return std::get<0>(attention(x, x, x)).transpose(0, 1);
  }
  nn::MultiheadAttention attention;
};
TORCH_MODULE(Attention);

struct EncoderLayerImpl : nn::Module {
  EncoderLayerImpl(int64_t width, double dropout)
      : layer(register_module(
            "layer",
            nn::TransformerEncoderLayer(
                nn::TransformerEncoderLayerOptions(width, 2).dim_feedforward(2 * width).dropout(
                    dropout)))) {}
  Tensor forward(Tensor x) { return layer(x.transpose(0, 1)).transpose(0, 1); }
  nn::TransformerEncoderLayer layer;
};
TORCH_MODULE(EncoderLayer);

struct PairImpl : nn::Module {
  PairImpl(int64_t in, int64_t out)
      : bilinear(register_module("bilinear", nn::Bilinear(in, in, out))) {}
  Tensor forward(Tensor x) { return bilinear(x, x.tanh()); }
  nn::Bilinear bilinear;
};
TORCH_MODULE(Pair);

struct ResidualImpl : nn::Module {
  explicit ResidualImpl(nn::Sequential inner) : inner(register_module("inner", inner)) {}
  Tensor forward(Tensor x) { return x + inner->forward(x); }
  nn::Sequential inner;
};
TORCH_MODULE(Residual);

// A block as in ResNet, whose last operation is in-place.
struct BasicBlockImpl : nn::Module {
  explicit BasicBlockImpl(int64_t channels)
      : conv(register_module(
            "conv", nn::Conv2d(nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false)))),
        norm(register_module("norm", nn::BatchNorm2d(channels))) {}
  Tensor forward(Tensor x) {
    Tensor y = norm(conv(x));
    y += x;
    return y.relu_();
  }
  nn::Conv2d conv;
  nn::BatchNorm2d norm;
};
TORCH_MODULE(BasicBlock);

// A module that uses one parameter twice, like a decoder that has its encoder's weight.
struct TiedInsideImpl : nn::Module {
  explicit TiedInsideImpl(int64_t width)
      : encode(register_module("encode", nn::Linear(width, width))) {}
  Tensor forward(Tensor x) { return torch::matmul(encode(x).tanh(), encode->weight); }
  nn::Linear encode;
};
TORCH_MODULE(TiedInside);

struct PoolUnpoolImpl : nn::Module {
  Tensor forward(Tensor x) {
    auto [pooled, indices] = pool->forward_with_indices(x);
    return unpool(pooled, indices, x.sizes().vec());
  }
  nn::MaxPool2d pool{2};
  nn::MaxUnpool2d unpool{2};
};
TORCH_MODULE(PoolUnpool);

struct EmbedImpl : nn::Module {
  EmbedImpl(int64_t entries, int64_t width)
      : table(register_module("table", nn::Embedding(entries, width))) {}
  Tensor forward(Tensor index) { return table(index.remainder(table->options.num_embeddings())); }
  nn::Embedding table;
};
TORCH_MODULE(Embed);

struct EmbedBagImpl : nn::Module {
  EmbedBagImpl(int64_t entries, int64_t width)
      : table(register_module(
            "table", nn::EmbeddingBag(nn::EmbeddingBagOptions(entries, width).mode(torch::kSum)))) {
  }
  Tensor forward(Tensor index) { return table(index.remainder(table->options.num_embeddings())); }
  nn::EmbeddingBag table;
};
TORCH_MODULE(EmbedBag);

struct Entry {
  uint32_t dimensions;
  uint32_t flags;
  const char* text;
  nn::AnyModule (*make)(int64_t channels, int64_t last, int64_t width);
};

// The text of a module and the module, so that each is written once.
#define GPIPE_MODULE(...)                                                            \
#__VA_ARGS__, []([[maybe_unused]] int64_t channels, [[maybe_unused]] int64_t last, \
                   [[maybe_unused]] int64_t width) { return nn::AnyModule(__VA_ARGS__); }

// `channels` is dimension 1, `last` the last dimension, `width` an even number up to 6.
const Entry kModules[] = {
    // Linear layers. draw_linear() takes the first one.
    {kAny, kFresh, GPIPE_MODULE(nn::Linear(last, width))},
    {kAny, kFresh, GPIPE_MODULE(nn::Linear(last, last))},
    {k1, kFresh, GPIPE_MODULE(nn::Linear(last, width))},
    {kAny, kFresh, GPIPE_MODULE(nn::Linear(nn::LinearOptions(last, width).bias(false)))},
    {k1 | k2, kFresh, GPIPE_MODULE(Pair(last, width))},
    {kAny, 0, GPIPE_MODULE(nn::Identity())},
    // Convolutions.
    {k2, kFresh, GPIPE_MODULE(nn::Conv1d(channels, width, 3))},
    {k2, kFresh,
     GPIPE_MODULE(nn::Conv1d(nn::Conv1dOptions(channels, channels, 3).padding(1).groups(2)))},
    {k2, kFresh,
     GPIPE_MODULE(nn::ConvTranspose1d(nn::ConvTranspose1dOptions(channels, width, 2).stride(2)))},
    {k3, kFresh, GPIPE_MODULE(nn::Conv2d(channels, width, 3))},
    {k3, kFresh,
     GPIPE_MODULE(nn::Conv2d(nn::Conv2dOptions(channels, width, 3).stride(2).padding(1)))},
    {k3, kFresh,
     GPIPE_MODULE(nn::Conv2d(nn::Conv2dOptions(channels, channels, 3).padding(1).groups(2)))},
    {k3, kFresh,
     GPIPE_MODULE(
         nn::Conv2d(nn::Conv2dOptions(channels, width, 3).padding(2).dilation(2).bias(false)))},
    {k3, kFresh,
     GPIPE_MODULE(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(channels, width, 2).stride(2)))},
    // Activations.
    {kAny, 0, GPIPE_MODULE(nn::ReLU())},
    {kAny, 0, GPIPE_MODULE(nn::Tanh())},
    {kAny, 0, GPIPE_MODULE(nn::Sigmoid())},
    {kAny, kFresh, GPIPE_MODULE(nn::GELU())},
    {kAny, kFresh, GPIPE_MODULE(nn::SiLU())},
    {kAny, kFresh, GPIPE_MODULE(nn::Mish())},
    {kAny, 0, GPIPE_MODULE(nn::ELU())},
    {kAny, 0, GPIPE_MODULE(nn::SELU())},
    {kAny, 0, GPIPE_MODULE(nn::CELU())},
    {kAny, 0, GPIPE_MODULE(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.1)))},
    {kAny, kFresh, GPIPE_MODULE(nn::PReLU())},
    {kAny, kFresh, GPIPE_MODULE(nn::PReLU(nn::PReLUOptions().num_parameters(channels)))},
    {kAny, 0, GPIPE_MODULE(nn::RReLU())},
    {kAny, 0, GPIPE_MODULE(nn::ReLU6())},
    {kAny, 0, GPIPE_MODULE(nn::Hardtanh())},
    {kAny, 0, GPIPE_MODULE(nn::Hardshrink())},
    {kAny, 0, GPIPE_MODULE(nn::Softshrink())},
    {kAny, 0, GPIPE_MODULE(nn::Tanhshrink())},
    {kAny, 0, GPIPE_MODULE(nn::Threshold(0.1, 0.5))},
    {kAny, 0, GPIPE_MODULE(nn::Softplus())},
    {kAny, 0, GPIPE_MODULE(nn::Softsign())},
    {kAny, 0, GPIPE_MODULE(nn::LogSigmoid())},
    {kAny, 0, GPIPE_MODULE(nn::GLU(1))},
    {kAny, 0, GPIPE_MODULE(nn::Softmax(1))},
    {kAny, 0, GPIPE_MODULE(nn::Softmax(-1))},
    {kAny, 0, GPIPE_MODULE(nn::LogSoftmax(1))},
    {kAny, 0, GPIPE_MODULE(nn::Softmin(1))},
    {k3, 0, GPIPE_MODULE(nn::Softmax2d())},
    // The same modules in place.
    {kAny, kInPlace, GPIPE_MODULE(nn::ReLU(nn::ReLUOptions(true)))},
    {kAny, kInPlace, GPIPE_MODULE(nn::ReLU(nn::ReLUOptions(true)))},
    {kAny, kInPlace, GPIPE_MODULE(nn::ReLU6(nn::ReLU6Options(true)))},
    {kAny, kInPlace, GPIPE_MODULE(nn::ELU(nn::ELUOptions().inplace(true)))},
    {kAny, kInPlace, GPIPE_MODULE(nn::SELU(nn::SELUOptions(true)))},
    {kAny, kInPlace, GPIPE_MODULE(nn::CELU(nn::CELUOptions().inplace(true)))},
    {kAny, kInPlace,
     GPIPE_MODULE(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.1).inplace(true)))},
    {kAny, kInPlace, GPIPE_MODULE(nn::Hardtanh(nn::HardtanhOptions().inplace(true)))},
    {kAny, kInPlace, GPIPE_MODULE(nn::Threshold(nn::ThresholdOptions(0.1, 0.5).inplace(true)))},
    {kAny, kInPlace | kFresh, GPIPE_MODULE(nn::Dropout(nn::DropoutOptions(0.3).inplace(true)))},
    // Norms.
    {k1 | k2, kFresh | kTwoRows | kBatchNorm, GPIPE_MODULE(nn::BatchNorm1d(channels))},
    {k1 | k2, kFresh | kTwoRows | kBatchNorm,
     GPIPE_MODULE(nn::BatchNorm1d(nn::BatchNorm1dOptions(channels).momentum(c10::nullopt)))},
    {k1 | k2, kFresh | kTwoRows | kBatchNorm,
     GPIPE_MODULE(nn::BatchNorm1d(nn::BatchNorm1dOptions(channels).track_running_stats(false)))},
    {k3, kFresh | kBatchNorm, GPIPE_MODULE(nn::BatchNorm2d(channels))},
    {k3, kFresh | kBatchNorm,
     GPIPE_MODULE(nn::BatchNorm2d(nn::BatchNorm2dOptions(channels).affine(false).momentum(0.3)))},
    {kAny, kFresh, GPIPE_MODULE(nn::LayerNorm(nn::LayerNormOptions({last})))},
    {kAny, kFresh,
     GPIPE_MODULE(nn::LayerNorm(nn::LayerNormOptions({last}).elementwise_affine(false)))},
    {kAny, kFresh, GPIPE_MODULE(nn::GroupNorm(2, channels))},
    {k2, kFresh, GPIPE_MODULE(nn::InstanceNorm1d(channels))},
    {k2, kFresh,
     GPIPE_MODULE(nn::InstanceNorm1d(
         nn::InstanceNorm1dOptions(channels).affine(true).track_running_stats(true)))},
    {k3, kFresh,
     GPIPE_MODULE(nn::InstanceNorm2d(nn::InstanceNorm2dOptions(channels).affine(true)))},
    {k3, kFresh,
     GPIPE_MODULE(
         nn::InstanceNorm2d(nn::InstanceNorm2dOptions(channels).track_running_stats(true)))},
    {k2 | k3, 0, GPIPE_MODULE(nn::LocalResponseNorm(2))},
    {k3, 0, GPIPE_MODULE(nn::CrossMapLRN2d(3))},
    // Random modules.
    {kAny, kFresh, GPIPE_MODULE(nn::Dropout(0.3))},
    {kAny, kFresh, GPIPE_MODULE(nn::Dropout(0.5))},
    {kAny, kFresh, GPIPE_MODULE(nn::AlphaDropout(0.2))},
    {kAny, kFresh, GPIPE_MODULE(nn::FeatureAlphaDropout(0.2))},
    {k3, kFresh, GPIPE_MODULE(nn::Dropout2d(0.4))},
    {k3, kFresh,
     GPIPE_MODULE(nn::FractionalMaxPool2d(nn::FractionalMaxPool2dOptions(2).output_size(2)))},
    // Pooling.
    {k2, kFresh, GPIPE_MODULE(nn::MaxPool1d(2))},
    {k2, kFresh, GPIPE_MODULE(nn::AvgPool1d(2))},
    {k2, kFresh, GPIPE_MODULE(nn::AdaptiveAvgPool1d(2))},
    {k2, kFresh, GPIPE_MODULE(nn::AdaptiveMaxPool1d(2))},
    {k2, 0, GPIPE_MODULE(nn::LPPool1d(2, 2))},
    {k3, kFresh, GPIPE_MODULE(nn::MaxPool2d(2))},
    {k3, kFresh, GPIPE_MODULE(nn::AvgPool2d(nn::AvgPool2dOptions(3).stride(1).padding(1)))},
    {k3, kFresh, GPIPE_MODULE(nn::AdaptiveAvgPool2d(2))},
    {k3, kFresh, GPIPE_MODULE(nn::AdaptiveMaxPool2d(2))},
    {k3, 0, GPIPE_MODULE(nn::LPPool2d(2, 2))},
    {k3, 0, GPIPE_MODULE(PoolUnpool())},
    // Padding, upsampling, shuffling.
    {k2, kFresh, GPIPE_MODULE(nn::ConstantPad1d(1, 0.5))},
    {k2, kFresh, GPIPE_MODULE(nn::ReflectionPad1d(1))},
    {k2, kFresh, GPIPE_MODULE(nn::ReplicationPad1d(1))},
    {k3, kFresh, GPIPE_MODULE(nn::ZeroPad2d(1))},
    {k3, kFresh, GPIPE_MODULE(nn::ReflectionPad2d(1))},
    {k3, kFresh, GPIPE_MODULE(nn::ReplicationPad2d(1))},
    {k2, kFresh,
     GPIPE_MODULE(nn::Upsample(nn::UpsampleOptions()
                                   .scale_factor(std::vector<double>{2})
                                   .mode(torch::kLinear)
                                   .align_corners(false)))},
    {k2, kFresh,
     GPIPE_MODULE(
         nn::Upsample(nn::UpsampleOptions().size(std::vector<int64_t>{5}).mode(torch::kNearest)))},
    {k3, kFresh,
     GPIPE_MODULE(nn::Upsample(
         nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest)))},
    {k3, kFresh,
     GPIPE_MODULE(nn::Upsample(nn::UpsampleOptions()
                                   .size(std::vector<int64_t>{3, 3})
                                   .mode(torch::kBilinear)
                                   .align_corners(true)))},
    {k3, 0, GPIPE_MODULE(nn::PixelShuffle(2))},
    {k3, 0, GPIPE_MODULE(nn::PixelUnshuffle(2))},
    {k3, kFresh, GPIPE_MODULE(nn::Unfold(nn::UnfoldOptions(2)))},
    // Shapes.
    {k2 | k3, 0, GPIPE_MODULE(nn::Flatten())},
    {k3, 0, GPIPE_MODULE(nn::Flatten(nn::FlattenOptions().start_dim(2)))},
    {k1, 0, GPIPE_MODULE(nn::Unflatten(nn::UnflattenOptions(1, {2, channels / 2})))},
    {k2, 0, GPIPE_MODULE(nn::Unflatten(nn::UnflattenOptions(1, {2, channels / 2})))},
    // Modules for sequences of shape (rows, time, width).
    {k2, 0, GPIPE_MODULE(Lstm(nn::LSTMOptions(last, width)))},
    {k2, 0, GPIPE_MODULE(Lstm(nn::LSTMOptions(last, 4).num_layers(2).dropout(0.3)))},
    {k2, 0, GPIPE_MODULE(Lstm(nn::LSTMOptions(last, width).bidirectional(true)))},
    {k2, 0, GPIPE_MODULE(Gru(nn::GRUOptions(last, width)))},
    {k2, 0, GPIPE_MODULE(Rnn(nn::RNNOptions(last, width)))},
    {k2, 0, GPIPE_MODULE(LastState(last, width))},
    {k1, 0, GPIPE_MODULE(LstmCell(last, width))},
    {k2, 0, GPIPE_MODULE(Attention(last, 0.0))},
    {k2, 0, GPIPE_MODULE(Attention(last, 0.2))},
    {k2, kFresh, GPIPE_MODULE(EncoderLayer(last, 0.1))},
    // Blocks.
    {kAny, kFresh,
     GPIPE_MODULE(
         Residual(nn::Sequential(nn::Linear(last, width), nn::Tanh(), nn::Linear(width, last))))},
    {k1, kFresh | kTwoRows | kBatchNorm,
     GPIPE_MODULE(Residual(nn::Sequential(nn::Linear(last, last), nn::BatchNorm1d(last),
                                          nn::ReLU(nn::ReLUOptions(true)), nn::Dropout(0.2))))},
    {k3, kBatchNorm, GPIPE_MODULE(BasicBlock(channels))},
    {kAny, 0, GPIPE_MODULE(TiedInside(last))},
};

Layer on_main_of_several(Layer layer, ValueKind kind) {
  const auto make = std::move(layer.make);
  layer.make = [make, kind](Workshop& workshop) {
    nn::AnyModule inner = make(workshop);
    nn::AnyModule outer = function_module(kind, kind, [inner](Tensors v) mutable {
      v[0] = inner.forward<Tensor>(std::move(v[0]));
      return v;
    });
    outer.ptr()->register_module("inner", inner.ptr());
    return outer;
  };
  layer.text = "[](" + argument_text(kind) + ") { v[0] = " + layer.text + "(v[0]); return v; }";
  return layer;
}

std::optional<Draw> draw(const Entry& entry, const State& state, Random& random) {
  const Tensor& x = state.main();
  if ((entry.dimensions & (1U << (x.dim() - 2))) == 0) return std::nullopt;
  if ((entry.flags & kInPlace) != 0 && !state.fresh) return std::nullopt;
  const int64_t channels = x.size(1);
  const int64_t last = x.size(-1);
  const int64_t width = 2 * pick(random, 1, 3);
  Layer layer;
  layer.text = with_numbers(entry.text, channels, last, width);
  layer.make = [make = entry.make, channels, last, width](Workshop&) {
    return make(channels, last, width);
  };
  layer.in_place = (entry.flags & kInPlace) != 0;
  layer.fresh = (entry.flags & kFresh) != 0;
  layer.needs_two_rows = (entry.flags & kTwoRows) != 0;
  layer.batch_norm = (entry.flags & kBatchNorm) != 0;
  if (state.kind != ValueKind::kTensor) layer = on_main_of_several(std::move(layer), state.kind);
  return Draw{std::move(layer), nullptr};
}

}  // namespace

std::optional<Draw> draw_module(const State& state, Random& random) {
  return draw(kModules[pick(random, 0, std::size(kModules) - 1)], state, random);
}

std::optional<Draw> draw_linear(const State& state, Random& random) {
  return draw(kModules[0], state, random);
}

std::optional<Draw> draw_shared_module(const State& state, Random& random) {
  const bool again = !state.shared_modules.empty() && !once_in(random, 3);
  Layer source;
  int64_t number = 0;
  if (again) {
    number = pick(random, 0, static_cast<int64_t>(state.shared_modules.size()) - 1);
    source = state.shared_modules[number];
  } else {
    State alone;
    alone.values = {state.main()};
    std::optional<Draw> draw = draw_module(alone, random);
    if (!draw) return std::nullopt;
    source = std::move(draw->layer);
    if (source.in_place) return std::nullopt;
    number = static_cast<int64_t>(state.shared_modules.size());
  }
  Layer layer = source;
  layer.text = "shared_" + std::to_string(number) + " /* " + source.text + " */";
  layer.make = [number, make = source.make](Workshop& workshop) {
    auto [entry, fresh] = workshop.modules.try_emplace(number);
    if (fresh) entry->second = make(workshop);
    // Each use of the shared module is wrapped in a module of its own, because one object cannot be
    // two layers.
    nn::AnyModule inner = entry->second;
    nn::AnyModule outer = function_module(
        ValueKind::kTensor, ValueKind::kTensor,
        [inner](Tensors v) mutable { return Tensors{inner.forward<Tensor>(std::move(v[0]))}; });
    outer.ptr()->register_module("shared", inner.ptr());
    return outer;
  };
  if (state.kind != ValueKind::kTensor) layer = on_main_of_several(std::move(layer), state.kind);
  Draw draw{std::move(layer), nullptr};
  if (!again) draw.taken = [source](State& after) { after.shared_modules.push_back(source); };
  return draw;
}

Draw draw_embedding(Random& random) {
  const int64_t width = 2 * pick(random, 1, 3);
  Layer layer;
  layer.fresh = true;
  if (once_in(random, 3)) {
    layer.text = "EmbedBag(7, " + std::to_string(width) + ")";
    layer.make = [width](Workshop&) { return nn::AnyModule(EmbedBag(7, width)); };
  } else {
    layer.text = "Embed(7, " + std::to_string(width) + ")";
    layer.make = [width](Workshop&) { return nn::AnyModule(Embed(7, width)); };
  }
  return {std::move(layer), nullptr};
}

Layer with_frozen_parameters(Layer layer, bool all) {
  layer.text += all ? " /* all parameters frozen */" : " /* first parameter frozen */";
  layer.make = [make = std::move(layer.make), all](Workshop& workshop) {
    nn::AnyModule module = make(workshop);
    for (Tensor& parameter : module.ptr()->parameters()) {
      parameter.requires_grad_(false);
      if (!all) break;
    }
    return module;
  };
  return layer;
}

Layer with_parameter_hooks(Layer layer, int64_t counter, bool scale, bool in_place) {
  layer.text += in_place ? " /* hooks on parameters: count, halve in place */"
                : scale  ? " /* hooks on parameters: count, halve */"
                         : " /* hooks on parameters: count */";
  layer.make = [make = std::move(layer.make), counter, scale, in_place](Workshop& workshop) {
    nn::AnyModule module = make(workshop);
    auto& count = workshop.counters[counter];
    if (!count) count = std::make_shared<std::atomic<int64_t>>(0);
    for (const Tensor& parameter : module.ptr()->parameters()) {
      if (!parameter.requires_grad()) continue;
      parameter.register_hook([count = count, scale, in_place](const Tensor& gradient) {
        ++*count;
        if (in_place) return gradient.mul_(0.5);
        return scale ? gradient * 0.5 : gradient;
      });
    }
    return module;
  };
  return layer;
}

Layer with_own_state(Layer layer, OwnState state) {
  layer.text += state == OwnState::kRoundsDownward ? " /* fesetround(FE_DOWNWARD) inside */"
                : state == OwnState::kAutocast     ? " /* autocast inside */"
                                                   : " /* autocast inside, with cache */";
  layer.make = [make = std::move(layer.make), in = layer.in, out = layer.out,
                state](Workshop& workshop) {
    nn::AnyModule inner = make(workshop);
    nn::AnyModule outer = function_module(in, out, [inner, in, state](Tensors values) mutable {
      const int rounding = std::fegetround();
      std::optional<AutocastScope> autocast;
      if (state == OwnState::kRoundsDownward) {
        std::fesetround(FE_DOWNWARD);
      } else {
        autocast.emplace(values.at(0).device().type(), at::kBFloat16,
                         /*cache=*/state == OwnState::kAutocastWithCache);
      }
      Tensors results =
          internal::from_any(inner.any_forward(internal::to_any({in, std::move(values)}))).tensors;
      std::fesetround(rounding);
      if (results[0].scalar_type() == at::kBFloat16) results[0] = results[0].to(at::kFloat);
      return results;
    });
    outer.ptr()->register_module("inner", inner.ptr());
    return outer;
  };
  return layer;
}

}  // namespace gpipe::testing::programs
