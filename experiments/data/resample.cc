#include "experiments/data/resample.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::experiments {
namespace {

constexpr int64_t kChannels = 3;

// The source pixels and weights of one output pixel in one direction.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;  // sum 1
};

// Taps of the outputs begin, ..., begin + count - 1 when `in` pixels become `out`.
std::vector<Taps> make_taps(int64_t in, int64_t out, int64_t begin, int64_t count) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  // Enlarging interpolates between neighbors. Reducing averages over everything that an output
  // pixel covers.
  const double support = std::max(scale, 1.0);
  std::vector<Taps> all;
  all.reserve(static_cast<std::size_t>(count));
  for (int64_t i = begin; i < begin + count; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), in);
    Taps taps;
    taps.first = first;
    double sum = 0;
    std::vector<double> weights;
    for (int64_t j = first; j < last; ++j) {
      const double distance = std::abs((static_cast<double>(j) + 0.5 - center) / support);
      weights.push_back(std::max(1.0 - distance, 0.0));
      sum += weights.back();
    }
    for (double weight : weights) taps.weights.push_back(static_cast<float>(weight / sum));
    all.push_back(std::move(taps));
  }
  return all;
}

void check_inside(const char* what, const Box& box, int64_t width, int64_t height) {
  if (box.width <= 0 || box.height <= 0 || box.left < 0 || box.top < 0 ||
      box.left + box.width > width || box.top + box.height > height) {
    throw std::invalid_argument(std::string(what) + " is empty or reaches outside of " +
                                std::to_string(width) + "x" + std::to_string(height));
  }
}

}  // namespace

void resample(const RgbImage& image, const Box& source, int64_t width, int64_t height,
              const Box& window, bool mirrored, const Normalization& normalization, float* pixels) {
  check_inside("the part to scale", source, image.width, image.height);
  check_inside("the window", window, width, height);
  const std::vector<Taps> columns = make_taps(source.width, width, window.left, window.width);
  const std::vector<Taps> rows = make_taps(source.height, height, window.top, window.height);

  // Scales along the rows first. Only those rows of the source are scaled that the window needs.
  const int64_t first_row = rows.front().first;
  const int64_t last_row = rows.back().first + static_cast<int64_t>(rows.back().weights.size());
  const int64_t line = kChannels * window.width;
  std::vector<float> narrow(static_cast<std::size_t>((last_row - first_row) * line));
  for (int64_t y = first_row; y < last_row; ++y) {
    const uint8_t* from =
        image.pixels.data() + kChannels * ((source.top + y) * image.width + source.left);
    float* to = narrow.data() + (y - first_row) * line;
    for (const Taps& taps : columns) {
      float sums[kChannels] = {0, 0, 0};
      const uint8_t* pixel = from + kChannels * taps.first;
      for (float weight : taps.weights) {
        for (int64_t c = 0; c < kChannels; ++c) sums[c] += weight * static_cast<float>(pixel[c]);
        pixel += kChannels;
      }
      for (int64_t c = 0; c < kChannels; ++c) *to++ = sums[c];
    }
  }

  std::vector<float> sums(static_cast<std::size_t>(line));
  for (int64_t y = 0; y < window.height; ++y) {
    const Taps& taps = rows[static_cast<std::size_t>(y)];
    std::fill(sums.begin(), sums.end(), 0.0F);
    const float* from = narrow.data() + (taps.first - first_row) * line;
    for (float weight : taps.weights) {
      for (int64_t i = 0; i < line; ++i) sums[static_cast<std::size_t>(i)] += weight * from[i];
      from += line;
    }
    for (int64_t c = 0; c < kChannels; ++c) {
      const auto channel = static_cast<std::size_t>(c);
      const float scale = 1.0F / (255.0F * normalization.deviation[channel]);
      const float shift = normalization.mean[channel] / normalization.deviation[channel];
      float* to = pixels + (c * window.height + y) * window.width;
      for (int64_t x = 0; x < window.width; ++x) {
        const int64_t column = mirrored ? window.width - 1 - x : x;
        to[x] = sums[static_cast<std::size_t>(kChannels * column + c)] * scale - shift;
      }
    }
  }
}

}  // namespace gpipe::experiments
