// to_svg: draws the memory of each device over a training step; balance/memory/memory_plan_text.h
// declares it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "balance/memory/memory_plan.h"
#include "balance/memory/memory_plan_text.h"
#include "balance/memory/memory_trace.h"
#include "gpipe/timeline/svg_parts.h"
#include "text/memory_size.h"

namespace gpipe::balance {
namespace {

// Lengths in pixels.
constexpr int kLeft = 70, kRight = 20, kTop = 76, kBottom = 46;
constexpr int kWidth = 840;   // width of a panel
constexpr int kHeight = 110;  // height of a panel
constexpr int kGap = 34;

// A color for each use. Color-blind readers can tell them apart, on light and on dark backgrounds.
constexpr std::array<const char*, kMemoryUses> kColors = {
    "#4e79a7", "#9c9c9c", "#c9b458", "#76b7b2", "#a77bb5", "#59a14f", "#f28e2b", "#e15759"};

// Reduces the turns of a device to at most kWidth columns, each with the largest peak.
std::vector<MemoryPeak> columns_of(const std::vector<MemoryPeak>& turns) {
  const size_t count = std::min<size_t>(turns.size(), kWidth);
  std::vector<MemoryPeak> columns(count);
  for (size_t k = 0; k < turns.size(); ++k) {
    MemoryPeak& column = columns[k * count / turns.size()];
    if (turns[k].bytes > column.bytes) column = turns[k];
  }
  return columns;
}

// Draws the area of one use, stacked on the uses below it, in steps.
std::string area(const std::vector<MemoryPeak>& columns, int use, double bytes_per_pixel, int top) {
  const auto count = static_cast<double>(columns.size());
  const auto height_at = [&](const MemoryPeak& column, int uses) {
    int64_t sum = 0;
    for (int k = 0; k < uses; ++k) sum += column.by_use[k];
    return top + kHeight - static_cast<double>(sum) / bytes_per_pixel;
  };
  std::string upper, lower;
  for (size_t k = 0; k < columns.size(); ++k) {
    const double left = kLeft + kWidth * static_cast<double>(k) / count;
    const double right = kLeft + kWidth * static_cast<double>(k + 1) / count;
    const double high = height_at(columns[k], use + 1);
    const double low = height_at(columns[k], use);
    absl::StrAppendFormat(&upper, "%s%.1f %.1fH%.1f", k == 0 ? "M" : "L", left, high, right);
    lower = absl::StrFormat("L%.1f %.1fH%.1f", right, low, left) + lower;
  }
  return absl::StrFormat("<path d=\"%s%sZ\" fill=\"%s\"/>\n", upper, lower, kColors[use]);
}

}  // namespace

std::string to_svg(const MemoryPlan& plan, const std::string& title) {
  const MemoryTrace& trace = plan.trace;
  // The second step begins after the first turn of the optimizer.
  size_t begin = 0;
  for (size_t k = 0; k + 1 < trace.turns.size() && begin == 0; ++k) {
    if (trace.turns[k].kind == Turn::Kind::kOptimizer) begin = k + 1;
  }
  std::vector<std::vector<MemoryPeak>> devices;
  for (const std::vector<MemoryPeak>& turns : curves(trace)) {
    devices.push_back(
        columns_of({turns.begin() + static_cast<std::ptrdiff_t>(begin), turns.end()}));
  }
  int64_t most = 1;
  std::array<bool, kMemoryUses> used = {};
  for (const std::vector<MemoryPeak>& columns : devices) {
    for (const MemoryPeak& column : columns) {
      most = std::max(most, column.bytes);
      for (int k = 0; k < kMemoryUses; ++k) used[k] = used[k] || column.by_use[k] > 0;
    }
  }
  const text::MemoryUnit shown = text::memory_unit(most);
  const auto unit = static_cast<double>(shown.bytes);
  const double bytes_per_pixel = static_cast<double>(most) * 1.05 / kHeight;
  const double distance = internal::distance_of_marks(static_cast<double>(most) / unit, 4);

  const int width = kLeft + kWidth + kRight;
  const int height = kTop + static_cast<int>(devices.size()) * (kHeight + kGap) + kBottom - kGap;
  std::string svg =
      internal::svg_begin(width, height, /*style=*/"") + internal::svg_title(kLeft, title);
  int x = kLeft;
  for (int k = 0; k < kMemoryUses; ++k) {
    if (!used[k]) continue;
    x = internal::add_svg_key(absl::StrFormat("fill=\"%s\"", kColors[k]),
                              name_of(static_cast<MemoryUse>(k)), x, svg);
  }
  for (size_t d = 0; d < devices.size(); ++d) {
    const int top = kTop + static_cast<int>(d) * (kHeight + kGap);
    const DeviceMemory& device = plan.devices[d];
    for (int k = 0; k < kMemoryUses; ++k) {
      if (used[k]) svg += area(devices[d], k, bytes_per_pixel, top);
    }
    for (int line = 0; line * distance * unit <= static_cast<double>(most) * 1.05; ++line) {
      const double y = top + kHeight - line * distance * unit / bytes_per_pixel;
      absl::StrAppendFormat(&svg,
                            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" font-size=\"10\">"
                            "%g %s</text>\n",
                            kLeft, kLeft + kWidth, y, y, kLeft - 6, y + 3.5, line * distance,
                            shown.name);
    }
    absl::StrAppendFormat(&svg,
                          "<text x=\"%d\" y=\"%d\">device %d: at most %.4g %s, in %s</text>\n",
                          kLeft, top - 4, d, static_cast<double>(device.peak.bytes) / unit,
                          shown.name, name_of(trace.turns[device.peak.turn]));
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%d\" y=\"%d\" font-size=\"11\">a training step and its update: "
      "%d actions of all stages, in the order in which they begin</text>\n</svg>\n",
      kLeft, height - 14, trace.turns.size() - begin - 2);
  return svg;
}

}  // namespace gpipe::balance
