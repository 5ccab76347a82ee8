// Gives every model options that do not make a network: zero, negative, odd and huge values.
#include "tools/testing/wrong_input.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/amoebanetd.h"
#include "models/old_amoebanetd.h"
#include "models/old_resnet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

using Row = gpipe::testing::WrongInput<>;
using Rows = std::vector<Row>;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

class WrongInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(WrongInputTest, IsRefused) { gpipe::testing::expect_refused(GetParam()); }

// Adds the rows of one option. Each of the values `wrong` must be refused with the option's name
// and the value.
void add(Rows* rows, const std::string& option, const std::vector<int64_t>& wrong,
         const std::function<void(int64_t)>& make) {
  for (int64_t value : wrong) {
    std::string name = option + "_";
    name += value == kMin   ? "least"
            : value == kMax ? "most"
            : value < 0     ? "minus_" + std::to_string(-value)
                            : std::to_string(value);
    rows->push_back({name,
                     [=] { make(value); },
                     typeid(c10::ValueError),
                     {option, " must be ", "got " + std::to_string(value)}});
  }
}

// --- ResNet

Row resnet_layers(std::string name, std::vector<int64_t> layers, std::vector<std::string> parts) {
  return {std::move(name), [=] { resnet(ResNetOptions(layers)); }, typeid(c10::ValueError),
          std::move(parts)};
}

Rows resnets() {
  const std::string no_block = "needs at least one block, got layers ";
  const std::string many_blocks = "at most 1024 blocks, got layers ";
  Rows rows = {
      resnet_layers("layers_empty", {}, {"at least one group of blocks", "got no layers"}),
      resnet_layers("layers_zero", {0}, {no_block + "[0]"}),
      resnet_layers("layers_zero_behind", {3, 4, 0}, {no_block + "[3, 4, 0]"}),
      resnet_layers("layers_negative", {1, -1}, {no_block + "[1, -1]"}),
      resnet_layers("layers_least", {kMin}, {no_block + "[-9223372036854775808]"}),
      resnet_layers("layers_most", {kMax}, {many_blocks + "[9223372036854775807]"}),
      resnet_layers("layers_1025", {1, 1025}, {many_blocks + "[1, 1025]"}),
      resnet_layers("layers_17_groups", std::vector<int64_t>(17, 1),
                    {"at most 16 groups", "got 17"}),
  };
  add(&rows, "num_classes", {0, -1, kMin, kMax, (int64_t{1} << 24) + 1},
      [](int64_t value) { resnet(ResNetOptions({1}).num_classes(value)); });
  add(&rows, "base_planes", {0, -4, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { resnet(ResNetOptions({1}).base_planes(value)); });
  add(&rows, "in_channels", {0, -3, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { resnet(ResNetOptions({1}).in_channels(value)); });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(ResNet, WrongInputTest, ::testing::ValuesIn(resnets()),
                         gpipe::testing::row_name);

// --- U-Net

Rows unets() {
  Rows rows;
  add(&rows, "num_convs", {0, -1, kMin, kMax, 1025},
      [](int64_t value) { unet(UNetOptions().num_convs(value)); });
  add(&rows, "base_channels", {1, 0, -2, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { unet(UNetOptions().base_channels(value)); });
  add(&rows, "in_channels", {0, -1, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { unet(UNetOptions().in_channels(value)); });
  add(&rows, "out_channels", {0, -1, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { unet(UNetOptions().out_channels(value)); });
  for (int64_t depth : {int64_t{0}, int64_t{-1}, int64_t{25}, int64_t{64}, kMin, kMax}) {
    const std::string shown = std::to_string(depth);
    rows.push_back({"depth_" + std::to_string(rows.size()),
                    [=] { unet(UNetOptions().depth(depth)); },
                    typeid(c10::ValueError),
                    {"depth", "from 1 to 24", "got " + shown}});
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(UNet, WrongInputTest, ::testing::ValuesIn(unets()),
                         gpipe::testing::row_name);

// --- AmoebaNet-D

Rows amoebanets() {
  Rows rows;
  add(&rows, "num_classes", {0, -1, kMin, kMax, (int64_t{1} << 24) + 1},
      [](int64_t value) { amoebanetd(AmoebaNetDOptions().num_classes(value)); });
  add(&rows, "num_filters", {7, 0, -8, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { amoebanetd(AmoebaNetDOptions().num_filters(value)); });
  // 3075 and 2^63 - 4 are multiples of 3, and so is -3.
  for (int64_t layers : {int64_t{1}, int64_t{17}, int64_t{-1}, int64_t{-3}, int64_t{3075}, kMin,
                         kMax, kMax - kMax % 3}) {
    const bool too_many = layers > 3072 && layers % 3 == 0;
    rows.push_back({"num_layers_" + std::to_string(rows.size()),
                    [=] { amoebanetd(AmoebaNetDOptions().num_layers(layers)); },
                    typeid(c10::ValueError),
                    {"num_layers", too_many ? "at most 3072" : "a multiple of 3 and not negative",
                     "got " + std::to_string(layers)}});
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(AmoebaNetD, WrongInputTest, ::testing::ValuesIn(amoebanets()),
                         gpipe::testing::row_name);

// --- the older networks

Row old_resnet_layers(std::string name, std::vector<int64_t> layers, std::string part) {
  return {std::move(name),
          [=] { old_resnet(OldResNetOptions(layers)); },
          typeid(c10::ValueError),
          {std::move(part)}};
}

Rows old_resnets() {
  Rows rows = {
      old_resnet_layers("layers_empty", {}, "at least one group of blocks, got no layers"),
      old_resnet_layers("layers_zero_behind", {3, 0},
                        "needs at least one block, got layers [3, 0]"),
      old_resnet_layers("layers_least", {kMin},
                        "needs at least one block, got layers [-9223372036854775808]"),
      old_resnet_layers("layers_1025", {1, 1025}, "at most 1024 blocks, got layers [1, 1025]"),
      old_resnet_layers("layers_17_groups", std::vector<int64_t>(17, 1),
                        "at most 16 groups, got 17"),
  };
  add(&rows, "num_classes", {0, -1, kMin, kMax, (int64_t{1} << 24) + 1},
      [](int64_t value) { old_resnet(OldResNetOptions({1}).num_classes(value)); });
  add(&rows, "base_planes", {0, -4, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { old_resnet(OldResNetOptions({1}).base_planes(value)); });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(OldResNet, WrongInputTest, ::testing::ValuesIn(old_resnets()),
                         gpipe::testing::row_name);

Rows old_amoebanets() {
  Rows rows;
  add(&rows, "num_classes", {0, -1, kMin, kMax, (int64_t{1} << 24) + 1},
      [](int64_t value) { old_amoebanetd(OldAmoebaNetDOptions().num_classes(value)); });
  add(&rows, "num_layers", {-1, kMin, kMax, 1025},
      [](int64_t value) { old_amoebanetd(OldAmoebaNetDOptions().num_layers(value)); });
  add(&rows, "num_filters", {7, 0, -8, kMin, kMax, (int64_t{1} << 20) + 1},
      [](int64_t value) { old_amoebanetd(OldAmoebaNetDOptions().num_filters(value)); });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(OldAmoebaNetD, WrongInputTest, ::testing::ValuesIn(old_amoebanets()),
                         gpipe::testing::row_name);

// --- transformers

TransformerOptions gpt2() {
  return TransformerOptions(TransformerKind::kGPT2)
      .vocab_size(9)
      .max_positions(8)
      .num_layers(1)
      .hidden_size(12)
      .num_heads(2);
}

TransformerOptions llama() {
  return TransformerOptions(TransformerKind::kLlama)
      .vocab_size(9)
      .max_positions(8)
      .num_layers(1)
      .hidden_size(12)
      .num_heads(2)
      .intermediate_size(10);
}

Row transformers(std::string name, const TransformerOptions& options,
                 std::vector<std::string> parts) {
  return {std::move(name), [=] { transformer(options); }, typeid(c10::ValueError),
          std::move(parts)};
}

Row wrong_ids(std::string name, std::function<at::Tensor()> ids, std::vector<std::string> parts) {
  return {std::move(name), [ids = std::move(ids)] { transformer(gpt2())->forward(ids()); },
          typeid(c10::ValueError), std::move(parts)};
}

Rows transformers() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  Rows rows = {
      transformers("kind", TransformerOptions(static_cast<TransformerKind>(7)), {"kind", "got 7"}),
      transformers("range_of_hidden_size", gpt2().hidden_size((int64_t{1} << 20) + 1),
                   {"hidden_size must be from 1 to 2^20, got 1048577"}),
      transformers("range_of_vocab_size", gpt2().vocab_size(0),
                   {"vocab_size must be from 1 to 2^24, got 0"}),
      transformers("heads_do_not_divide", gpt2().num_heads(5),
                   {"hidden_size must be a multiple of num_heads", "12 and 5"}),
      transformers("kv_heads_do_not_divide", llama().num_heads(6).num_kv_heads(4),
                   {"num_heads must be a multiple of num_kv_heads", "6 and 4"}),
      transformers("more_kv_heads", llama().num_kv_heads(4), {"num_kv_heads", "2 and 4"}),
      transformers("gpt2_with_kv_heads", gpt2().num_kv_heads(1),
                   {"num_kv_heads", "GPT-2", "got 1"}),
      transformers("gpt2_with_head_size", gpt2().head_size(5), {"head_size", "GPT-2", "got 5"}),
      transformers("odd_heads", llama().num_heads(4), {"head_size must be even", "got 3"}),
      transformers("odd_head_size", llama().head_size(7), {"head_size must be even", "got 7"}),
      transformers("norm_epsilon_zero", gpt2().norm_epsilon(0), {"norm_epsilon", "got 0"}),
      transformers("norm_epsilon_nan", gpt2().norm_epsilon(nan), {"norm_epsilon", "got nan"}),
      transformers("rope_theta", llama().rope_theta(infinity), {"rope_theta", "got inf"}),
      transformers("embedding_dropout", gpt2().embedding_dropout(1),
                   {"embedding_dropout", "got 1"}),
      transformers("residual_dropout", gpt2().residual_dropout(-0.5),
                   {"residual_dropout", "got -0.5"}),
      transformers("attention_dropout", gpt2().attention_dropout(nan),
                   {"attention_dropout", "got nan"}),
      transformers("initializer_range", gpt2().initializer_range(-1),
                   {"initializer_range", "got -1"}),
      wrong_ids("ids_of_one_dimension", [] { return at::zeros({4}, at::kLong); },
                {"whole numbers of shape [rows, tokens]", "[4]"}),
      wrong_ids("ids_with_fractions",
                [] {
                  return at::zeros({1, 4});
                },
                {"token ids", "Float"}),
      wrong_ids("id_beyond_the_vocabulary",
                [] {
                  return at::full({1, 4}, 1 << 20, at::kInt);
                },
                {"token ids must be from 0 to ", "got 1048576"}),
      wrong_ids("negative_id",
                [] {
                  return at::full({1, 4}, -100, at::kLong);
                },
                {"(vocab_size), got -100"}),
      wrong_ids("too_many_tokens",
                [] {
                  return at::zeros({1, 9}, at::kLong);
                },
                {"8 positions", "9 tokens"}),
  };
  const auto with = [](const std::function<void(TransformerOptions&)>& change) {
    TransformerOptions options = llama();
    change(options);
    return options;
  };
  const auto rotary = [&](const RotaryOptions& each) {
    return with([&](TransformerOptions& o) { o.block().kinds({LayerKind().rotary(each)}); });
  };
  const Rows of_blocks = {
      transformers("block_negative_window",
                   with([](TransformerOptions& o) { o.block().kinds({LayerKind().window(-1)}); }),
                   {"window must be from 0", "got -1"}),
      transformers("block_without_kinds", with([](TransformerOptions& o) { o.block().kinds({}); }),
                   {"must have a kind of layers"}),
      transformers("block_kinds_of_other_layers", with([](TransformerOptions& o) {
                     o.block().kind_of_block({0, 0});
                   }),
                   {"kind_of_block must have num_layers entries, got 2 for 1"}),
      transformers("block_kind_that_is_not_there",
                   with([](TransformerOptions& o) { o.block().kind_of_block({1}); }),
                   {"kind_of_block must be from 0 to 0, got 1"}),
      transformers("block_cap_and_fused", with([](TransformerOptions& o) {
                     o.fused_attention(true).block().attention_soft_cap(1);
                   }),
                   {"fused_attention has no soft cap"}),
      transformers("block_cap_nan",
                   with([&](TransformerOptions& o) { o.block().logit_soft_cap(nan); }),
                   {"logit_soft_cap", "got nan"}),
      transformers("block_by_head_with_fewer_keys",
                   with([](TransformerOptions& o) { o.num_kv_heads(1).block().qkv_by_head(true); }),
                   {"qkv_by_head needs as many", "1 and 2"}),
      transformers("block_gate_without_gate",
                   with([](TransformerOptions& o) { o.block().gated(false).gate_in_up(true); }),
                   {"gate_in_up needs a gated MLP"}),
      transformers("rotary_part", rotary(RotaryOptions().part(1.5)), {"at most 1, got 1.5"}),
      transformers("rotary_part_odd", rotary(RotaryOptions().part(0.5)),
                   {"positive even number, got 3 of head_size 6"}),
      transformers("rotary_factor", rotary(RotaryOptions().kind(RotaryKind::kLinear).factor(0)),
                   {"factor of rotary positions", "got 0"}),
      transformers("rotary_factors", rotary(RotaryOptions().kind(RotaryKind::kLongRope)),
                   {"short_factors and long_factors", "6 rotated columns, got 0"}),
      transformers("rotary_frequencies",
                   rotary(RotaryOptions().kind(RotaryKind::kLlama3).high_freq_factor(1)),
                   {"high_freq_factor must be above low_freq_factor, got 1 and 1"}),
  };
  rows.insert(rows.end(), of_blocks.begin(), of_blocks.end());
  const int64_t vocabulary = (int64_t{1} << 24) + 1, width = (int64_t{1} << 20) + 1;
  add(&rows, "vocab_size", {0, -1, kMin, kMax, vocabulary},
      [](int64_t value) { transformer(gpt2().vocab_size(value)); });
  add(&rows, "max_positions", {0, -1, kMin, kMax, vocabulary},
      [](int64_t value) { transformer(gpt2().max_positions(value)); });
  add(&rows, "num_layers", {-1, kMin, kMax, 1025},
      [](int64_t value) { transformer(gpt2().num_layers(value)); });
  add(&rows, "hidden_size", {0, -1, kMin, kMax, width},
      [](int64_t value) { transformer(gpt2().hidden_size(value)); });
  add(&rows, "num_heads", {0, -1, kMin, kMax, 4097},
      [](int64_t value) { transformer(gpt2().num_heads(value)); });
  add(&rows, "num_kv_heads", {-1, kMin, kMax, 4097},
      [](int64_t value) { transformer(llama().num_kv_heads(value)); });
  add(&rows, "head_size", {-1, kMin, kMax, width},
      [](int64_t value) { transformer(llama().head_size(value)); });
  add(&rows, "intermediate_size", {-1, kMin, kMax, (int64_t{1} << 22) + 1},
      [](int64_t value) { transformer(llama().intermediate_size(value)); });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Transformer, WrongInputTest, ::testing::ValuesIn(transformers()),
                         gpipe::testing::row_name);

// The tests below give values that look wrong but are accepted.

TEST(OddInputTest, TransformersTakeOddNumbers) {
  for (const bool llama_kind : {false, true}) {
    const TransformerOptions small =
        llama_kind ? llama().hidden_size(7).num_heads(3).head_size(2) : gpt2().hidden_size(14);
    auto model = transformer(TransformerOptions(small).vocab_size(1).num_layers(0));
    EXPECT_EQ(model->size(), 3u);
    model = transformer(TransformerOptions(small).intermediate_size(1));
    EXPECT_EQ(model->forward(at::zeros({2, 1}, at::kInt)).sizes(), (at::IntArrayRef{2, 1, 9}));
    EXPECT_EQ(model->forward(at::zeros({2, 0}, at::kLong)).sizes(), (at::IntArrayRef{2, 0, 9}));
    EXPECT_EQ(model->forward(at::zeros({0, 5}, at::kLong)).sizes(), (at::IntArrayRef{0, 5, 9}));
  }
}

TEST(OddInputTest, ResNetTakesOddNumbers) {
  auto model = resnet(ResNetOptions({1, 1}).num_classes(1).base_planes(1).in_channels(1));
  EXPECT_EQ(model->forward(at::rand({2, 1, 33, 35})).sizes(), (at::IntArrayRef{2, 1}));
}

TEST(OddInputTest, UNetTakesOddNumbers) {
  auto model =
      unet(UNetOptions().depth(1).num_convs(1).base_channels(3).in_channels(1).out_channels(5));
  EXPECT_EQ(model->forward(at::rand({2, 1, 7, 9})).sizes(), (at::IntArrayRef{2, 5, 7, 9}));
}

TEST(OddInputTest, AmoebaNetDTakesOddFiltersAndNoNormalCells) {
  for (int64_t filters : {8, 13}) {
    auto model = amoebanetd(AmoebaNetDOptions().num_layers(0).num_filters(filters).num_classes(1));
    EXPECT_EQ(model->size(), 6u);
    EXPECT_EQ(model->forward(at::rand({2, 3, 224, 224})).sizes(), (at::IntArrayRef{2, 1}));
  }
}

TEST(OddInputTest, OldAmoebaNetDTakesOddFiltersAndNoNormalCells) {
  for (int64_t filters : {8, 13}) {
    auto model =
        old_amoebanetd(OldAmoebaNetDOptions().num_layers(0).num_filters(filters).num_classes(1));
    EXPECT_EQ(model->size(), 85u);
    EXPECT_EQ(model->forward(at::rand({2, 3, 224, 224})).sizes(), (at::IntArrayRef{2, 1}));
  }
}

TEST(OddInputTest, ABatchOfNoRowsHasNoScores) {
  torch::nn::Sequential nets[] = {
      resnet(ResNetOptions({1}).num_classes(3).base_planes(2)),
      unet(UNetOptions().depth(1).num_convs(1).base_channels(2).out_channels(3))};
  for (auto& net : nets) {
    net->eval();
    EXPECT_EQ(net->forward(at::rand({0, 3, 32, 32})).size(0), 0);
    EXPECT_EQ(net->forward(at::rand({0, 3, 32, 32})).size(1), 3);
  }
}

}  // namespace
}  // namespace gpipe::models
