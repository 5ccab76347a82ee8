// Calls the public functions with wrong input: they must throw what their headers say, and the
// message must say what was given and what to do.
#include "tools/testing/wrong_input.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balance/balance.h"
#include "balance/cut/partition.h"
#include "meta/meta_scope.h"

namespace gpipe::balance {
namespace {

using Row = testing::WrongInput<>;
using Rows = std::vector<Row>;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Row row(std::string name, const std::vector<double>& costs, int64_t partitions,
        const PartitionOptions& options, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "partition: ");
  return {std::move(name), [=] { partition(costs, partitions, options); },
          typeid(std::invalid_argument), std::move(parts)};
}

// Partitions five layers of cost 1 into two.
Row row(std::string name, const PartitionOptions& options, std::vector<std::string> parts) {
  return row(std::move(name), {1, 1, 1, 1, 1}, 2, options, std::move(parts));
}

class WrongInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(WrongInputTest, IsRefused) { testing::expect_refused(GetParam()); }

Rows counts() {
  Rows rows;
  const std::vector<std::pair<std::string, int64_t>> wrong = {
      {"None", 0}, {"Negative", -1}, {"Least", kMin}};
  for (const auto& [name, given] : wrong) {
    rows.push_back(row(name, {1, 1}, given, {}, {"at least 1", "got " + std::to_string(given)}));
  }
  rows.push_back(row("NoLayers", {}, 1, {}, {"0 layers for 1 partition;", "fewer"}));
  rows.push_back(row("NoLayersNoPartitions", {}, 0, {}, {"at least 1", "got 0"}));
  rows.push_back(row("OneTooMany", {1, 1}, 3, {}, {"2 layers for 3 partitions", "fewer"}));
  rows.push_back(row("Most", {1}, kMax, {}, {"1 layer for " + std::to_string(kMax)}));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Partitions, WrongInputTest, ::testing::ValuesIn(counts()),
                         testing::row_name);

Rows costs() {
  Rows rows;
  const std::vector<std::pair<std::string, double>> wrong = {
      {"nan", kNan},
      {"inf", kInfinity},
      {"-inf", -kInfinity},
      {"-0.5", -0.5},
      {"-4.94065645841247e-324", -std::numeric_limits<double>::denorm_min()}};
  for (size_t k = 0; k < wrong.size(); ++k) {
    const auto& [shown, given] = wrong[k];
    const std::string number = std::to_string(k);
    rows.push_back(row("Cost" + number, {1, 2, 3, given}, 2, {},
                       {"costs[3] is " + shown, "finite number of at least 0"}));
    PartitionOptions send;
    send.send_costs = {given, 0, 0, 0};
    rows.push_back(row("Send" + number, send, {"send_costs[0] is " + shown, "at least 0"}));
    PartitionOptions receive;
    receive.receive_costs = {0, 0, 0, given};
    rows.push_back(
        row("Receive" + number, receive, {"receive_costs[3] is " + shown, "at least 0"}));
    PartitionOptions slowness;
    slowness.slowness = {1, given};
    rows.push_back(row("Slowness" + number, slowness, {"slowness[1] is " + shown, "above 0"}));
  }
  PartitionOptions zero;
  zero.slowness = {0, 1};
  rows.push_back(row("NoSlowness", zero, {"slowness[0] is 0", "above 0"}));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Costs, WrongInputTest, ::testing::ValuesIn(costs()), testing::row_name);

Rows lists() {
  Rows rows;
  const auto add = [&](std::string name, const std::function<void(PartitionOptions*)>& set,
                       std::vector<std::string> parts) {
    PartitionOptions options;
    set(&options);
    rows.push_back(row(std::move(name), options, std::move(parts)));
  };
  add("ShortSlowness", [](auto* options) { options->slowness = {1}; },
      {"slowness has 1 value", "expected 2", "each partition"});
  add("LongSlowness",
      [](auto* options) {
        options->slowness = {1, 1, 1};
      },
      {"slowness has 3 values", "expected 2"});
  add("SizesOnly",
      [](auto* options) {
        options->sizes = {1, 1, 1, 1, 1};
      },
      {"size_limits has 0 values", "expected 2", "each partition"});
  add("LimitsOnly",
      [](auto* options) {
        options->size_limits = {1, 1};
      },
      {"sizes has 0 values", "expected 5", "each layer"});
  add("ShortSend", [](auto* options) { options->send_costs = {1}; },
      {"send_costs has 1 value", "expected 4", "neighboring"});
  add("LongReceive",
      [](auto* options) {
        options->receive_costs = {1, 1, 1, 1, 1};
      },
      {"receive_costs has 5 values", "expected 4", "neighboring"});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Lengths, WrongInputTest, ::testing::ValuesIn(lists()), testing::row_name);

Row size_row(std::string name, std::vector<int64_t> sizes, std::vector<int64_t> limits,
             std::vector<std::string> parts, std::vector<LayerRange> keep_together = {}) {
  PartitionOptions options;
  options.sizes = std::move(sizes);
  options.size_limits = std::move(limits);
  options.keep_together = std::move(keep_together);
  return row(std::move(name), options, std::move(parts));
}

Rows sizes() {
  const std::string advice = "Give larger limits or more partitions";
  return {
      size_row("Negative", {0, 0, -3, 0, 0}, {1, 1}, {"sizes[2] is -3", "at least 0"}),
      size_row("NegativeLimit", {0, 0, 0, 0, 0}, {1, -1}, {"size_limits[1] is -1", "at least 0"}),
      size_row("TooLargeASum", {kMax, 1, 0, 0, 0}, {kMax, kMax}, {"2^63", "larger unit"}),
      size_row("ALayerTooLarge", {1, 12, 1, 1, 1}, {10, 9},
               {"layer 1 alone needs 12", "largest limit is 10", "take 3 more", advice}),
      size_row("APieceTooLarge", {4, 4, 4, 1, 1}, {10, 9},
               {"layers 0 to 2, which must stay together, need 12", "largest limit is 10",
                "take 2 more", advice},
               {{0, 1}, {1, 2}}),
      size_row("AllTooLarge", {4, 4, 4, 4, 4}, {9, 9},
               {"all layers need 20", "limits allow 18", "take 3 more", advice}),
      size_row("NoCutFits", {4, 4, 4, 4, 4}, {10, 11},
               {"wherever the cuts are", "take 1 more", advice}),
      size_row("LimitsOfZero", {1, 0, 0, 0, 1}, {0, 0},
               {"layer 0 alone needs 1", "largest limit is 0", "take 1 more"}),
      size_row("LargeNumbers", {kMax - 4, 1, 1, 1, 1}, {kMax - 5, kMax - 5},
               {"layer 0 alone needs " + std::to_string(kMax - 4), "take 1 more"}),
      size_row("LimitsThatSumToMoreThanANumberHolds", {1, kMax - 2, 1, 0, 0}, {kMax - 2, 3},
               {"wherever the cuts are", "take 1 more"}),
      size_row("LimitsThatTogetherAreTooSmall", {1, kMax - 2, 1, 0, 0}, {kMax - 2, 0},
               {"all layers need " + std::to_string(kMax),
                "allow " + std::to_string(kMax - 2) + " in all", "take 1 more"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Sizes, WrongInputTest, ::testing::ValuesIn(sizes()), testing::row_name);

Rows ranges() {
  const auto range_row = [](std::string name, int64_t first, int64_t last,
                            const std::string& shown) {
    PartitionOptions options;
    options.keep_together = {{0, 1}, {first, last}};
    return row(std::move(name), options,
               {"keep_together[1] is layers " + shown, "first <= last", "0 to 4"});
  };
  PartitionOptions all;
  all.keep_together = {{0, 3}, {3, 4}};
  return {range_row("Negative", -1, 2, "-1 to 2"),
          range_row("PastTheEnd", 3, 5, "3 to 5"),
          range_row("Backwards", 3, 2, "3 to 2"),
          range_row("Least", kMin, 0, std::to_string(kMin)),
          range_row("Most", 0, kMax, "0 to " + std::to_string(kMax)),
          row("TooFewPieces", all,
              {"keep_together leaves 1 piece of 5 layers for 2 partitions", "fewer"})};
}

INSTANTIATE_TEST_SUITE_P(KeepTogether, WrongInputTest, ::testing::ValuesIn(ranges()),
                         testing::row_name);

namespace nn = torch::nn;

nn::Sequential three_layers() {
  return nn::Sequential(nn::Linear(2, 3), nn::ReLU(), nn::Linear(3, 1));
}

at::Tensor four_rows() { return at::rand({4, 2}); }

Row value_error(std::string name, std::function<void()> call, std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(c10::ValueError), std::move(parts)};
}

struct NullWithinImpl : nn::Module {
  NullWithinImpl() { register_module("hole", std::shared_ptr<nn::Module>()); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(NullWithin);

using Model = std::function<nn::Sequential()>;
using Sample = std::function<Tensors()>;

// Mistakes that profile_times, profile_sizes, profile and both balances refuse alike.
void add_to_all(Rows& rows, const std::string& name, const Model& model, const Sample& sample,
                const std::vector<std::string>& parts) {
  rows.push_back(value_error(
      name + "Times", [=] { profile_times(model(), sample()); }, parts));
  rows.push_back(value_error(
      name + "Sizes", [=] { profile_sizes(model(), sample()); }, parts));
  rows.push_back(value_error(
      name + "Profile", [=] { profile(model(), sample()); }, parts));
  rows.push_back(value_error(
      name + "ByTime", [=] { balance_by_time(1, model(), sample()); }, parts));
  rows.push_back(value_error(
      name + "BySize", [=] { balance_by_size(1, model(), sample()); }, parts));
}

Rows models() {
  Rows rows;
  const auto add_model = [&](const std::string& name, const Model& model,
                             const std::vector<std::string>& parts) {
    add_to_all(
        rows, name, model, [] { return Tensors{four_rows()}; }, parts);
  };
  const auto add_sample = [&](const std::string& name, const Sample& sample,
                              const std::vector<std::string>& parts) {
    add_to_all(rows, name, three_layers, sample, parts);
  };
  add_model("Empty", [] { return nn::Sequential(); }, {"no layers"});
  add_model("Holder", [] { return nn::Sequential(nullptr); }, {"empty module holder"});
  add_model("TheSameLayerTwice",
            [] {
              nn::Linear twice(2, 2);
              return nn::Sequential(twice, twice);
            },
            {"'0' and '1'", "same object"});
  add_model("NullLayer",
            [] {
              nn::Sequential model = three_layers();
              model->push_back("gone", std::shared_ptr<nn::LinearImpl>());
              return model;
            },
            {"the layer 'gone' of the model is a null pointer", "leave it out"});
  add_model("NullWithinALayer", [] { return nn::Sequential(nn::Linear(2, 2), NullWithin()); },
            {"the submodule '1.hole' is a null pointer"});
  add_model("TwoDevices",
            [] {
              nn::Sequential model = three_layers();
              MetaScope meta;
              model->push_back("far", nn::Linear(1, 1));
              return model;
            },
            {"'weight' of layer 3 ('far') is on meta", "layer 0 ('0') is on cpu", "one device"});
  add_sample("NoTensors", [] { return Tensors{}; }, {"no tensors", "one micro-batch"});
  add_sample("Undefined", [] { return Tensors{at::Tensor()}; }, {"sample tensor"});
  add_sample("NoRows", [] { return Tensors{at::empty({0, 2})}; }, {"0 rows", "one micro-batch"});
  add_sample("Scalar", [] { return Tensors{at::rand({})}; }, {"sample tensor 0"});
  add_sample("UnequalRows",
             [] {
               return Tensors{at::rand({4, 2}), at::rand({3, 2})};
             },
             {"sample tensor 1"});
  add_sample("TwoTensors",
             [] {
               return Tensors{four_rows(), four_rows()};
             },
             {"the model's first layer", "2"});
  add_sample("Elsewhere", [] { return Tensors{four_rows().to(at::kMeta)}; },
             {"tensor 0 of the sample is on meta", "the model is on cpu", ".to()"});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Models, WrongInputTest, ::testing::ValuesIn(models()), testing::row_name);

Rows profiling_options() {
  Rows rows;
  const auto on_meta = [] {
    MetaScope meta;
    return three_layers();
  };
  const auto on_meta_rows = [] { return four_rows().to(at::kMeta); };
  const std::vector<std::string> says = {"meta device", "profile_sizes or balance_by_size"};
  rows.push_back(value_error(
      "MetaTimes", [=] { profile_times(on_meta(), on_meta_rows()); }, says));
  rows.push_back(value_error(
      "MetaByTime", [=] { balance_by_time(1, on_meta(), on_meta_rows()); }, says));
  rows.push_back(value_error("Inference",
                             [] {
                               c10::InferenceMode inference;
                               profile_times(three_layers(), at::rand({4, 2}));
                             },
                             {"InferenceMode", "outside"}));

  const auto times = [&](const std::string& name, const TimeOptions& options,
                         std::vector<std::string> parts) {
    rows.push_back(value_error(
        name, [=] { profile_times(three_layers(), four_rows(), options); }, parts));
    rows.push_back(value_error(
        name + "Balance", [=] { balance_by_time(2, three_layers(), four_rows(), options); },
        parts));
  };
  const std::vector<std::pair<std::string, double>> timeouts = {
      {"0", 0}, {"-1", -1}, {"nan", kNan}, {"inf", kInfinity}};
  for (size_t k = 0; k < timeouts.size(); ++k) {
    const auto& [shown, given] = timeouts[k];
    const std::vector<std::string> parts = {"timeout", "above 0", "got " + shown};
    times("Timeout" + std::to_string(k), TimeOptions().timeout(given), parts);
    rows.push_back(value_error(
        "ProfileTimeout" + std::to_string(k),
        [timeout = given] {
          profile(three_layers(), four_rows(), ProfileOptions().timeout(timeout));
        },
        parts));
  }
  times("NegativeRows", TimeOptions().micro_batch_rows(-1), {"micro_batch_rows", "got -1"});
  times("TooManyRows", TimeOptions().micro_batch_rows(5), {"the sample's 4 rows", "got 5"});
  times("TogetherPastTheEnd", TimeOptions().keep_together({{0, 1}, {1, 3}}),
        {"keep_together[1] is layers 1 to 3", "first <= last", "0 to 2"});
  times("NegativeThreads", TimeOptions().cpu_threads(-1), {"cpu_threads", "got -1"});
  times("TooManyThreads", TimeOptions().cpu_threads(1025), {"1 to 1024", "got 1025"});

  const auto sizes = [&](const std::string& name, const SizeOptions& options,
                         std::vector<std::string> parts) {
    rows.push_back(value_error(
        name, [=] { profile_sizes(three_layers(), four_rows(), options); }, parts));
    rows.push_back(value_error(
        name + "Balance", [=] { balance_by_size(2, three_layers(), four_rows(), options); },
        parts));
  };
  const std::vector<std::pair<std::string, double>> scales = {
      {"-0.5", -0.5}, {"nan", kNan}, {"inf", kInfinity}};
  for (size_t k = 0; k < scales.size(); ++k) {
    sizes("Scale" + std::to_string(k), SizeOptions().param_scale(scales[k].second),
          {"param_scale", "at least 0", "got " + scales[k].first});
  }
  sizes("LargeScale", SizeOptions().param_scale(1e300), {"layers up to layer 0 ('0')", "smaller"});
  sizes("NoChunks", SizeOptions().chunks(0), {"chunks must be at least 1", "got 0"});
  sizes("NegativeChunks", SizeOptions().chunks(-3), {"got -3"});
  sizes("MostChunks", SizeOptions().chunks(kMax), {"fewer chunks", std::to_string(kMax)});
  sizes("SizesOfTooManyRows", SizeOptions().micro_batch_rows(5), {"4 rows", "got 5"});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Profiling, WrongInputTest, ::testing::ValuesIn(profiling_options()),
                         testing::row_name);

Rows balances() {
  Rows rows;
  const std::vector<std::pair<int64_t, std::vector<std::string>>> wrong = {
      {0, {"at least 1", "got 0"}},
      {-1, {"got -1"}},
      {4, {"3 layers for 4 partitions", "fewer"}},
      {kMax, {"3 layers for " + std::to_string(kMax)}}};
  for (size_t k = 0; k < wrong.size(); ++k) {
    const int64_t given = wrong[k].first;
    rows.push_back(value_error(
        "Partitions" + std::to_string(k) + "ByTime",
        [=] { balance_by_time(given, three_layers(), four_rows()); }, wrong[k].second));
    rows.push_back(value_error(
        "Partitions" + std::to_string(k) + "BySize",
        [=] { balance_by_size(given, three_layers(), four_rows()); }, wrong[k].second));
  }
  // The inputs have a wrong shape, so the model would throw if it ran: wrong options must be
  // refused before.
  rows.push_back(value_error(
      "Slowness",
      [=] {
        balance_by_time(2, three_layers(), at::rand({4, 7}), TimeOptions().slowness({1, 0}));
      },
      {"slowness[1] is 0", "above 0"}));
  rows.push_back(value_error(
      "Together",
      [=] {
        balance_by_size(2, three_layers(), at::rand({4, 7}), SizeOptions().keep_together({{0, 2}}));
      },
      {"keep_together leaves 1 piece", "fewer"}));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Balances, WrongInputTest, ::testing::ValuesIn(balances()),
                         testing::row_name);

}  // namespace
}  // namespace gpipe::balance
