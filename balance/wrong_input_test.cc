// partition() is given wrong input: it throws what its header says, and the message tells what was
// given and what to do.
#include "tools/testing/wrong_input.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balance/partition.h"

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

// Five layers of cost 1 into two partitions.
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
      {"-4.9406564584124654e-324", -std::numeric_limits<double>::denorm_min()}};
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
      {"send_costs has 1 value", "expected 4", "neighbouring"});
  add("LongReceive",
      [](auto* options) {
        options->receive_costs = {1, 1, 1, 1, 1};
      },
      {"receive_costs has 5 values", "expected 4", "neighbouring"});
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
  const auto one = [](std::string name, int64_t first, int64_t last, const std::string& shown) {
    PartitionOptions options;
    options.keep_together = {{0, 1}, {first, last}};
    return row(std::move(name), options,
               {"keep_together[1] is layers " + shown, "first <= last", "0 to 4"});
  };
  PartitionOptions all;
  all.keep_together = {{0, 3}, {3, 4}};
  return {one("Negative", -1, 2, "-1 to 2"),
          one("PastTheEnd", 3, 5, "3 to 5"),
          one("Backwards", 3, 2, "3 to 2"),
          one("Least", kMin, 0, std::to_string(kMin)),
          one("Most", 0, kMax, "0 to " + std::to_string(kMax)),
          row("TooFewPieces", all,
              {"keep_together leaves 1 piece of 5 layers for 2 partitions", "fewer"})};
}

INSTANTIATE_TEST_SUITE_P(KeepTogether, WrongInputTest, ::testing::ValuesIn(ranges()),
                         testing::row_name);

}  // namespace
}  // namespace gpipe::balance
