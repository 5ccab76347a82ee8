#include "experiments/rows/speed_table.h"

#include <algorithm>

namespace gpipe::experiments {
namespace {

constexpr char kTorchgpipe[] = "torchgpipe";
constexpr char kHuang[] = "Huang et al.";
constexpr char kScript[] = "its script";

}  // namespace

PublishedTable speed_table(const std::string& title, const std::vector<SpeedVariant>& rows) {
  Column throughput = {"throughput", "images/s", {}, ""};
  Column speed_up = {"speed_up", "speed-up", {}, kTorchgpipe};
  PublishedTable table;
  table.title = title;
  const auto add = [](PublishedRow& row, Column& column, const char* source,
                      const std::string& figure) {
    if (figure.empty()) return;
    row.figures[column.key][source] = figure;
    std::vector<std::string>& sources = column.sources;
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) {
      sources.emplace_back(source);
    }
  };
  for (const SpeedVariant& variant : rows) {
    const SpeedFigures& published = variant.published;
    PublishedRow row = {variant.name, {}, ""};
    add(row, throughput, kTorchgpipe, published.throughput);
    add(row, throughput, kScript, published.script_throughput);
    add(row, speed_up, kTorchgpipe, published.torchgpipe);
    add(row, speed_up, kScript, published.script);
    add(row, speed_up, kHuang, published.huang);
    table.rows.push_back(row);
  }
  table.columns = {throughput, speed_up};
  table.ratio = speed_up.key;
  table.ratio_of = throughput.key;
  table.reference = rows.at(0).name;
  return table;
}

}  // namespace gpipe::experiments
