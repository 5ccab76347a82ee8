#include "experiments/rows/speed_table_checks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <string>

namespace gpipe::experiments {

void expect_rows_of(const PublishedTable& table, const std::vector<SpeedVariant>& variants,
                    int64_t layers) {
  ASSERT_EQ(table.rows.size(), variants.size());
  for (std::size_t i = 0; i < variants.size(); ++i) {
    EXPECT_EQ(table.rows[i].experiment, variants[i].name);
    const std::vector<int64_t>& balance = variants[i].balance;
    if (balance.empty()) continue;
    EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}), layers);
  }
}

void expect_speed_ups_of_throughputs(const PublishedTable& table) {
  const auto figure = [&](std::size_t row, const char* column) {
    return std::stod(table.rows[row].figures.at(column).at("torchgpipe"));
  };
  ASSERT_FALSE(table.rows.empty());
  EXPECT_EQ(table.rows[0].experiment, table.reference);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    EXPECT_NEAR(figure(i, "speed_up"), figure(i, "throughput") / figure(0, "throughput"), 0.0006);
  }
}

}  // namespace gpipe::experiments
