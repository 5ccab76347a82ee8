#include "experiments/data/resample.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/data/random.h"

namespace gpipe::experiments {
namespace {

// A normalization that leaves pixels in [0, 255] as they are.
Normalization identity() {
  Normalization normalization;
  normalization.mean = {0, 0, 0};
  normalization.deviation = {1 / 255.0F, 1 / 255.0F, 1 / 255.0F};
  return normalization;
}

RgbImage random_image(int64_t width, int64_t height) {
  RgbImage image{width, height, {}};
  Random random({static_cast<uint64_t>(width), static_cast<uint64_t>(height)});
  for (int64_t i = 0; i < 3 * width * height; ++i) {
    image.pixels.push_back(static_cast<uint8_t>(random.below(256)));
  }
  return image;
}

// LibTorch's result for the same arguments: shape [3, window.height, window.width].
at::Tensor reference(RgbImage& image, const Box& source, int64_t width, int64_t height,
                     const Box& window) {
  const at::Tensor whole =
      at::from_blob(image.pixels.data(), {image.height, image.width, 3}, at::kByte);
  const at::Tensor part = whole.narrow(0, source.top, source.height)
                              .narrow(1, source.left, source.width)
                              .permute({2, 0, 1})
                              .unsqueeze(0)
                              .to(at::kFloat);
  return at::_upsample_bilinear2d_aa(part, {height, width}, /*align_corners=*/false)
      .squeeze(0)
      .narrow(1, window.top, window.height)
      .narrow(2, window.left, window.width);
}

struct Case {
  int64_t image_width, image_height;
  Box source;
  int64_t width, height;
  Box window;
};

class ResampleTest : public ::testing::TestWithParam<Case> {};

TEST_P(ResampleTest, AgreesWithLibTorch) {
  const Case& c = GetParam();
  RgbImage image = random_image(c.image_width, c.image_height);
  at::Tensor ours = at::empty({3, c.window.height, c.window.width});
  resample(image, c.source, c.width, c.height, c.window, false, identity(), ours.data_ptr<float>());
  const at::Tensor theirs = reference(image, c.source, c.width, c.height, c.window);
  // LibTorch sums values of up to 255 in another order, so the results differ by rounding.
  EXPECT_LT(ours.sub(theirs).abs().max().item().toFloat(), 1e-3F);
  at::Tensor mirrored = at::empty_like(ours);
  resample(image, c.source, c.width, c.height, c.window, true, identity(),
           mirrored.data_ptr<float>());
  EXPECT_TRUE(at::equal(mirrored, ours.flip(2)));
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ResampleTest,
    ::testing::Values(Case{50, 40, {0, 0, 50, 40}, 25, 20, {0, 0, 25, 20}},   // a half
                      Case{50, 40, {0, 0, 50, 40}, 17, 31, {0, 0, 17, 31}},   // odd factors
                      Case{10, 8, {0, 0, 10, 8}, 33, 40, {0, 0, 33, 40}},     // enlarged
                      Case{64, 48, {5, 7, 41, 30}, 24, 24, {0, 0, 24, 24}},   // a part of it
                      Case{64, 48, {0, 0, 64, 48}, 34, 26, {5, 1, 24, 24}},   // a window
                      Case{7, 5, {3, 2, 1, 1}, 4, 4, {0, 0, 4, 4}},           // a single pixel
                      Case{24, 24, {0, 0, 24, 24}, 24, 24, {0, 0, 24, 24}}),  // unchanged
    [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(Resample, Normalizes) {
  const RgbImage image{1, 1, {255, 0, 51}};
  float pixels[3];
  resample(image, {0, 0, 1, 1}, 1, 1, {0, 0, 1, 1}, false, {}, pixels);
  EXPECT_NEAR(pixels[0], (1 - 0.485) / 0.229, 1e-5);
  EXPECT_NEAR(pixels[1], (0 - 0.456) / 0.224, 1e-5);
  EXPECT_NEAR(pixels[2], (0.2 - 0.406) / 0.225, 1e-5);
}

TEST(Resample, RefusesBoxesOutside) {
  const RgbImage image = random_image(4, 4);
  std::vector<float> pixels(48);
  EXPECT_THROW(resample(image, {1, 0, 4, 4}, 4, 4, {0, 0, 4, 4}, false, {}, pixels.data()),
               std::invalid_argument);
  EXPECT_THROW(resample(image, {0, 0, 4, 4}, 4, 4, {0, 1, 4, 4}, false, {}, pixels.data()),
               std::invalid_argument);
  EXPECT_THROW(resample(image, {0, 0, 4, 0}, 4, 4, {0, 0, 4, 4}, false, {}, pixels.data()),
               std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
