#include "experiments/data/fashion_mnist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::experiments {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24U), static_cast<char>(value >> 16U),
          static_cast<char>(value >> 8U), static_cast<char>(value)};
}

std::string idx(const std::vector<uint32_t>& sizes, const std::string& bytes) {
  std::string text = {0, 0, 8, static_cast<char>(sizes.size())};
  for (uint32_t size : sizes) text += big_endian(size);
  return text + bytes;
}

std::string gzip(const std::string& text, const std::string& path) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A data set of three images of 2x2.
class FashionMnistTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
    images_ = folder_ + "/train-images-idx3-ubyte.gz";
    labels_ = folder_ + "/train-labels-idx1-ubyte.gz";
    packed_ =
        gzip(idx({3, 2, 2}, std::string("\x00\xFF\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0A", 12)),
             images_);
    gzip(idx({3}, std::string("\x09\x00\x02", 3)), labels_);
  }

  void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  auto make() {
    return [this] { FashionMnist(folder_, {}); };
  }

  std::string folder_;
  std::string images_;
  std::string labels_;
  std::string packed_;
};

TEST_F(FashionMnistTest, ReadsAndNormalizes) {
  const FashionMnist data(folder_, {});
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.shape().size(), 4);
  Random random({1});
  std::vector<float> pixels(4);
  EXPECT_EQ(data.read(0, random, pixels.data()).label, 9);
  EXPECT_FLOAT_EQ(pixels[0], -0.286F / 0.353F);
  EXPECT_FLOAT_EQ(pixels[1], (1 - 0.286F) / 0.353F);
  EXPECT_EQ(data.read(2, random, pixels.data()).label, 2);
  EXPECT_FLOAT_EQ(pixels[3], (10 / 255.0F - 0.286F) / 0.353F);
}

TEST_F(FashionMnistTest, MirrorsSomeImages) {
  FashionMnistOptions options;
  options.flip = true;
  const FashionMnist data(folder_, options);
  std::vector<float> pixels(4);
  int mirrored = 0;
  for (uint64_t draw = 0; draw < 100; ++draw) {
    Random random({draw});
    data.read(0, random, pixels.data());
    mirrored += pixels[0] > pixels[1] ? 1 : 0;
  }
  EXPECT_GT(mirrored, 25);
  EXPECT_LT(mirrored, 75);
}

TEST_F(FashionMnistTest, EnlargesBilinearly) {
  FashionMnistOptions options;
  options.enlarge = 2;
  const FashionMnist data(folder_, options);
  EXPECT_EQ(data.shape().size(), 16);
  Random random({1});
  std::vector<float> pixels(16);
  data.read(0, random, pixels.data());  // 0 255 / 1 2
  const auto normal = [](float value) { return (value / 255 - 0.286F) / 0.353F; };
  EXPECT_NEAR(pixels[0], normal(0), 1e-5);
  EXPECT_NEAR(pixels[1], normal(255 * 0.25F), 1e-5);
  EXPECT_NEAR(pixels[2], normal(255 * 0.75F), 1e-5);
  EXPECT_NEAR(pixels[3], normal(255), 1e-5);
  EXPECT_NEAR(pixels[4], normal(0.25F), 1e-5);
  EXPECT_NEAR(pixels[15], normal(2), 1e-5);
  options.enlarge = 0;
  EXPECT_THROW(FashionMnist(folder_, options), std::invalid_argument);
}

TEST_F(FashionMnistTest, LimitTakesTheFirst) {
  FashionMnistOptions options;
  options.limit = 2;
  EXPECT_EQ(FashionMnist(folder_, options).size(), 2);
  options.limit = 5;
  EXPECT_EQ(FashionMnist(folder_, options).size(), 3);
}

TEST_F(FashionMnistTest, MissingFilesSayWhatToInstall) {
  folder_ += "/nowhere";
  EXPECT_THAT(make(), ThrowsMessage<std::invalid_argument>(
                          AllOf(HasSubstr("nowhere"), HasSubstr("dataset-fashion-mnist"))));
}

TEST_F(FashionMnistTest, TruncatedFile) {
  write(images_, packed_.substr(0, packed_.size() / 2));
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("train-images-idx3-ubyte.gz")));
}

TEST_F(FashionMnistTest, DamagedByte) {
  std::string damaged = packed_;
  damaged[damaged.size() - 6] ^= 0x55;  // in the checksum
  write(images_, damaged);
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("damaged")));
}

TEST_F(FashionMnistTest, OtherFormats) {
  write(images_, "hello, this is not an idx file");
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("not an idx file")));
  gzip(idx({3}, "abc"), images_);
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("3 dimension(s)")));
  gzip(idx({4000000000U, 4000000000U, 2}, ""), images_);
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("impossible size")));
  gzip(idx({3, 2, 2}, "too long for 3 images"), images_);
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("longer than its header")));
}

TEST_F(FashionMnistTest, LabelsThatDoNotFit) {
  gzip(idx({2}, std::string("\x01\x02", 2)), labels_);
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("2 labels for 3 images")));
  gzip(idx({3}, std::string("\x01\x02\x0A", 3)), labels_);
  EXPECT_THAT(make(), ThrowsMessage<std::runtime_error>(HasSubstr("label above 9")));
}

TEST_F(FashionMnistTest, UncompressedFilesToo) {
  std::filesystem::remove(labels_);
  write(folder_ + "/train-labels-idx1-ubyte", idx({3}, std::string("\x01\x02\x03", 3)));
  Random random({1});
  std::vector<float> pixels(4);
  EXPECT_EQ(FashionMnist(folder_, {}).read(2, random, pixels.data()).label, 3);
}

}  // namespace
}  // namespace gpipe::experiments
