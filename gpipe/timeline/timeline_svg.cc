#include "gpipe/timeline/timeline_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpipe/timeline/svg_parts.h"

namespace gpipe {
namespace {

// Sizes in pixels.
constexpr int kLeft = 80, kRight = 20, kTop = 66, kBottom = 40;
constexpr int kWidth = 880;  // the width of the tracks
constexpr int kTrack = 22;
constexpr int kBar = 18;    // the height of an action in its track
constexpr int kTitle = 22;  // the height of a panel's title
constexpr int kGap = 12;
constexpr double kDigit = 6.2;  // the width of a digit

// The kinds of time that have a color of their own.
enum Paint : uint8_t { kForward, kBackward, kInput, kWeight, kRecompute, kFailed, kMove, kPaints };

struct Look {
  const char* name;
  const char* color;  // distinct also for color-blind people; numbers on it are black
};
constexpr std::array<Look, kPaints> kLooks = {{{"forward", "#76a5d8"},
                                               {"backward", "#7fbf7b"},
                                               {"input gradient", "#c9b458"},
                                               {"weight gradient", "#b79ac4"},
                                               {"recompute", "#f2a65a"},
                                               {"failed", "#e15759"},
                                               {"offload, reload", "#c0c0c0"}}};

Paint paint_of(const TimelineAction& timed) {
  if (timed.failed) return kFailed;
  switch (timed.action.kind) {
    case ActionKind::kForward:
      return kForward;
    case ActionKind::kBackward:
      return kBackward;
    case ActionKind::kInputGradient:
      return kInput;
    case ActionKind::kWeightGradient:
      return kWeight;
    case ActionKind::kOffload:
    case ActionKind::kReload:
      return kMove;
  }
  return kFailed;
}

std::string in_unit(double seconds, double most) {
  if (most >= 1) return absl::StrFormat("%g s", seconds);
  if (most >= 1e-3) return absl::StrFormat("%g ms", seconds * 1e3);
  return absl::StrFormat("%g µs", seconds * 1e6);
}

// The track of one worker.
class Track {
 public:
  Track(int64_t zero, double nanoseconds_per_pixel, int top)
      : zero_(zero), scale_(nanoseconds_per_pixel), top_(top), columns_(kWidth + 1) {}

  void add(const TimelineAction& timed) {
    const Paint paint = paint_of(timed);
    used_[paint] = true;
    const double width = static_cast<double>(timed.end - timed.begin) / scale_;
    if (timed.recompute() > 0) used_[kRecompute] = true;
    if (width < 1) {
      add_narrow(paint, timed.begin, timed.end - timed.recompute());
      add_narrow(kRecompute, timed.end - timed.recompute(), timed.end);
      return;
    }
    add_bar(paint, timed.begin, timed.end);
    if (timed.recompute() > 0) {
      add_bar(kRecompute, timed.recompute_begin, timed.recompute_end);
    }
    const std::string number = absl::StrCat(timed.action.micro_batch);
    if (width < kDigit * static_cast<double>(number.size()) + 2) return;
    absl::StrAppendFormat(&numbers_, "<text x=\"%.1f\" y=\"%d\">%s</text>",
                          (x(timed.begin) + x(timed.end)) / 2, top_ + 13, number);
  }

  std::string text() const {
    std::string text;
    for (int paint = 0; paint < kPaints; ++paint) {
      if (bars_[paint].empty()) continue;
      absl::StrAppendFormat(&text, "<path class=\"k%d\" d=\"%s\"/>\n", paint, bars_[paint]);
    }
    text += narrow();
    if (!numbers_.empty()) absl::StrAppend(&text, "<g class=\"n\">", numbers_, "</g>\n");
    return text;
  }

  bool uses(int paint) const { return used_[paint]; }

 private:
  double x(int64_t time) const { return kLeft + static_cast<double>(time - zero_) / scale_; }

  void add_bar(Paint paint, int64_t begin, int64_t end) {
    // The width leaves a narrow gap between neighbors.
    const double left = x(begin);
    const double width = std::max(x(end) - left - 0.4, 0.3);
    absl::StrAppendFormat(&bars_[paint], "M%.1f %dh%.1fv%dh-%.1fz", left, top_, width, kBar, width);
  }

  void add_narrow(Paint paint, int64_t begin, int64_t end) {
    const double middle = static_cast<double>((begin + end) / 2 - zero_) / scale_;
    const auto column = static_cast<size_t>(std::clamp(middle, 0.0, double{kWidth}));
    columns_[column][paint] += static_cast<double>(end - begin) / scale_;
  }

  // Returns the narrow actions. Neighboring columns that look the same are drawn as one.
  std::string narrow() const {
    std::string text;
    const auto look = [&](size_t column) {
      const auto& shares = columns_[column];
      const auto most = std::max_element(shares.begin(), shares.end());
      double sum = 0;
      for (const double share : shares) sum += share;
      // Opacity in tenths is exact enough. The least that is drawn is one tenth.
      const double tenths = sum > 0 ? std::clamp(std::round(sum * 10), 1.0, 10.0) : 0;
      return std::pair<int, int>(most - shares.begin(), static_cast<int>(tenths));
    };
    for (size_t k = 0; k < columns_.size();) {
      const auto [paint, tenths] = look(k);
      size_t end = k + 1;
      while (end < columns_.size() && look(end) == std::pair<int, int>(paint, tenths)) ++end;
      if (tenths > 0) {
        absl::StrAppendFormat(
            &text, "<path class=\"k%d\" opacity=\"%g\" d=\"M%d %dh%dv%dh-%dz\"/>\n", paint,
            tenths / 10.0, kLeft + static_cast<int>(k), top_, end - k, kBar, end - k);
      }
      k = end;
    }
    return text;
  }

  const int64_t zero_;
  const double scale_;
  const int top_;
  std::vector<std::array<double, kPaints>> columns_;  // by pixel, the share of each paint
  std::array<std::string, kPaints> bars_;
  std::array<bool, kPaints> used_{};
  std::string numbers_;
};

std::string style() {
  std::string text = ".t{fill:#8881}.n text{fill:#111;font-size:10px;text-anchor:middle}";
  for (int paint = 0; paint < kPaints; ++paint) {
    absl::StrAppendFormat(&text, ".k%d{fill:%s}", paint, kLooks[paint].color);
  }
  return text;
}

}  // namespace

std::string to_svg(const std::vector<TimelinePanel>& panels, const std::string& title) {
  int64_t longest = 1;
  size_t tracks = 0;
  for (const TimelinePanel& panel : panels) {
    longest = std::max(longest, panel.step.end() - panel.step.begin());
    tracks += panel.step.workers.size();
  }
  const double scale = static_cast<double>(longest) / kWidth;
  const int bottom =
      kTop + static_cast<int>(tracks) * kTrack + static_cast<int>(panels.size()) * (kTitle + kGap);
  const int width = kLeft + kWidth + kRight;
  const int height = bottom + kBottom;

  std::string body;
  std::array<bool, kPaints> used{};
  int y = kTop;
  for (const TimelinePanel& panel : panels) {
    absl::StrAppendFormat(&body, "<text x=\"%d\" y=\"%d\">%s: %.4g ms</text>\n", kLeft, y + 14,
                          internal::svg_text(panel.title),
                          static_cast<double>(panel.step.end() - panel.step.begin()) / 1e6);
    y += kTitle;
    for (size_t worker = 0; worker < panel.step.workers.size(); ++worker) {
      Track track(panel.step.begin(), scale, y);
      for (const TimelineAction& timed : panel.step.workers[worker]) track.add(timed);
      for (int paint = 0; paint < kPaints; ++paint) used[paint] = used[paint] || track.uses(paint);
      absl::StrAppendFormat(&body,
                            "<rect class=\"t\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                            "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" font-size=\"11\">"
                            "worker %d</text>\n",
                            kLeft, y, kWidth, kBar, kLeft - 6, y + 13, worker);
      body += track.text();
      y += kTrack;
    }
    y += kGap;
  }

  std::string svg = internal::svg_begin(width, height, style()) + internal::svg_title(kLeft, title);
  int x = kLeft;
  for (int paint = 0; paint < kPaints; ++paint) {
    if (!used[paint]) continue;
    x = internal::add_svg_key(absl::StrFormat("class=\"k%d\"", paint), kLooks[paint].name, x, svg);
  }
  const double seconds = static_cast<double>(longest) / 1e9;
  const double distance = internal::distance_of_marks(seconds, 10);
  for (int mark = 0; mark * distance <= seconds; ++mark) {
    const double mark_x = kLeft + mark * distance * 1e9 / scale;
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
                          "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-size=\"10\">"
                          "%s</text>\n",
                          mark_x, mark_x, kTop, bottom, mark_x, bottom + 14,
                          in_unit(mark * distance, seconds));
  }
  return svg + body + "</svg>\n";
}

}  // namespace gpipe
