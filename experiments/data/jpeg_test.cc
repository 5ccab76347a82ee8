#include "experiments/data/jpeg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/data/jpeg_testing.h"

namespace gpipe::experiments {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// The largest error of a pixel that is allowed, because JPEG is lossy.
constexpr int kLoss = 6;

std::string path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

TEST(ReadJpeg, GivesTheColors) {
  std::vector<uint8_t> pixels;
  for (int y = 0; y < 24; ++y) {
    for (int x = 0; x < 32; ++x) {
      pixels.insert(pixels.end(),
                    {static_cast<uint8_t>(8 * x), static_cast<uint8_t>(10 * y), uint8_t{70}});
    }
  }
  write_bytes(path("a.jpg"), encode_jpeg(32, 24, pixels));
  const RgbImage image = read_jpeg(path("a.jpg"));
  EXPECT_EQ(image.width, 32);
  EXPECT_EQ(image.height, 24);
  ASSERT_EQ(image.pixels.size(), pixels.size());
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    ASSERT_LE(std::abs(int{image.pixels[i]} - int{pixels[i]}), kLoss) << i;
  }
}

TEST(ReadJpeg, GrayBecomesThreeEqualChannels) {
  write_bytes(path("gray.jpg"), encode_jpeg(8, 8, std::vector<uint8_t>(64, 90), TJPF_GRAY));
  for (uint8_t value : read_jpeg(path("gray.jpg")).pixels) EXPECT_NEAR(value, 90, kLoss);
}

TEST(ReadJpeg, Cmyk) {
  std::vector<uint8_t> pixels;  // inverted: 255 is no ink
  for (int i = 0; i < 64; ++i) pixels.insert(pixels.end(), {200, 100, 50, 255});
  write_bytes(path("cmyk.jpg"), encode_jpeg(8, 8, pixels, TJPF_CMYK));
  const RgbImage image = read_jpeg(path("cmyk.jpg"));
  ASSERT_EQ(image.pixels.size(), 192u);
  EXPECT_NEAR(image.pixels[0], 200, kLoss);
  EXPECT_NEAR(image.pixels[1], 100, kLoss);
  EXPECT_NEAR(image.pixels[2], 50, kLoss);
}

TEST(ReadJpeg, SaysWhichFileIsBadAndWhy) {
  const auto reading = [](const std::string& file) { return [file] { read_jpeg(file); }; };
  EXPECT_THAT(reading(path("missing.jpg")),
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr("missing.jpg"), HasSubstr("No such file"))));
  write_bytes(path("empty.jpg"), "");
  EXPECT_THAT(reading(path("empty.jpg")), ThrowsMessage<std::runtime_error>(HasSubstr("empty")));
  write_bytes(path("text.jpg"), "this is not an image");
  EXPECT_THAT(reading(path("text.jpg")), ThrowsMessage<std::runtime_error>(HasSubstr("text.jpg")));
  const std::string whole = plain_jpeg(64, 64, 1, 2, 3);
  write_bytes(path("cut.jpg"), whole.substr(0, whole.size() - 30));
  EXPECT_THAT(reading(path("cut.jpg")),
              ThrowsMessage<std::runtime_error>(HasSubstr("Premature end")));
  write_bytes(path("good.jpg"), whole);
  EXPECT_EQ(read_jpeg(path("good.jpg")).width, 64) << "a bad file must not spoil the decoder";
}

}  // namespace
}  // namespace gpipe::experiments
