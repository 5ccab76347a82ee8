// resample: scales 8-bit images with the antialiased bilinear filter that published ImageNet
// recipes use.
//
// The filter is a triangle as wide as the reduction needs. It does not use torch: the threads that
// load images must not start a team of OpenMP threads each.
#ifndef GPIPE_EXPERIMENTS_DATA_RESAMPLE_H_
#define GPIPE_EXPERIMENTS_DATA_RESAMPLE_H_

#include <array>
#include <cstdint>
#include <vector>

namespace gpipe::experiments {

// An image: red, green, blue interleaved, rows from the top.
struct RgbImage {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> pixels;  // 3 * width * height
};

struct Box {
  int64_t left = 0;
  int64_t top = 0;
  int64_t width = 0;
  int64_t height = 0;
};

// Means and standard deviations of the three channels of pixels in [0, 1].
struct Normalization {
  std::array<float, 3> mean = {0.485F, 0.456F, 0.406F};
  std::array<float, 3> deviation = {0.229F, 0.224F, 0.225F};
};

// Scales the part `source` of `image` to `width` x `height`, takes the part `window` of the result,
// mirrors it if `mirrored`, and writes it normalized to `pixels`: channel, row, column; 3 *
// window.width * window.height floats. Pixels outside `source` are not used. Throws
// std::invalid_argument if a box is empty or reaches outside.
void resample(const RgbImage& image, const Box& source, int64_t width, int64_t height,
              const Box& window, bool mirrored, const Normalization& normalization, float* pixels);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_RESAMPLE_H_
