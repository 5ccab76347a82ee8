#include "experiments/data/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/data/jpeg_testing.h"

namespace gpipe::experiments {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class ImageFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_ + "/dog");
    std::filesystem::create_directories(folder_ + "/cat");
    write_bytes(folder_ + "/dog/b.JPEG", plain_jpeg(40, 30, 200, 0, 0));
    write_bytes(folder_ + "/dog/a.jpg", plain_jpeg(30, 60, 0, 200, 0));
    write_bytes(folder_ + "/cat/c.jpeg", plain_jpeg(50, 50, 0, 0, 200));
    write_bytes(folder_ + "/cat/readme.txt", "not an image");
  }

  ImageFolderOptions options(bool train) {
    ImageFolderOptions options;
    options.train = train;
    options.size = 14;
    options.short_side = 16;
    return options;
  }

  std::string folder_;
};

TEST_F(ImageFolderTest, ClassesAndFilesInAlphabeticalOrder) {
  const ImageFolder data(folder_, options(false));
  EXPECT_THAT(data.classes(), ElementsAre("cat", "dog"));
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.shape().size(), 3 * 14 * 14);
  std::vector<float> pixels(3 * 14 * 14);
  Random random({1});
  // The bright channel tells which file an image is from: c is blue, a green, b red.
  const std::size_t bright[] = {2, 1, 0};
  const int64_t labels[] = {0, 1, 1};
  for (int64_t i = 0; i < 3; ++i) {
    const ReadResult result = data.read(i, random, pixels.data());
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.label, labels[i]);
    for (std::size_t c = 0; c < 3; ++c) {
      EXPECT_EQ(pixels[c * 196 + 100] > 0, c == bright[i]) << "image " << i << " channel " << c;
    }
  }
}

TEST_F(ImageFolderTest, ValidationTakesTheMiddle) {
  // The left third of this 3:1 image is black, the middle white, the right third black. So the crop
  // of the middle must be all white.
  std::vector<uint8_t> pixels;
  for (int y = 0; y < 32; ++y) {
    for (int x = 0; x < 96; ++x) {
      pixels.insert(pixels.end(), 3, x >= 32 && x < 64 ? uint8_t{255} : uint8_t{0});
    }
  }
  write_bytes(folder_ + "/cat/c.jpeg", encode_jpeg(96, 32, pixels));
  const ImageFolder data(folder_, options(false));
  std::vector<float> out(3 * 14 * 14);
  Random random({1});
  data.read(0, random, out.data());
  for (int i = 0; i < 196; ++i) ASSERT_GT(out[static_cast<std::size_t>(i)], 2.0F) << i;
}

TEST_F(ImageFolderTest, TrainingDependsOnTheDrawsAlone) {
  std::vector<uint8_t> gradient;
  for (int i = 0; i < 64 * 64; ++i) {
    gradient.insert(gradient.end(), 3, static_cast<uint8_t>(4 * (i % 64)));
  }
  write_bytes(folder_ + "/cat/c.jpeg", encode_jpeg(64, 64, gradient));
  const ImageFolder data(folder_, options(true));
  std::vector<float> a(3 * 14 * 14);
  std::vector<float> b(3 * 14 * 14);
  int mirrored = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random first({seed});
    Random second({seed});
    data.read(0, first, a.data());
    data.read(0, second, b.data());
    ASSERT_EQ(a, b);
    mirrored += a[0] > a[13] ? 1 : 0;
  }
  EXPECT_GT(mirrored, 15);
  EXPECT_LT(mirrored, 45);
  Random other({1000});
  data.read(0, other, b.data());
  EXPECT_NE(a, b);
}

TEST_F(ImageFolderTest, DamagedAndMissingImagesDoNotThrow) {
  const ImageFolder data(folder_, options(true));
  write_bytes(folder_ + "/dog/a.jpg", "damaged");
  std::filesystem::remove(folder_ + "/dog/b.JPEG");
  std::vector<float> pixels(3 * 14 * 14);
  Random random({1});
  EXPECT_THAT(data.read(1, random, pixels.data()).error, HasSubstr("dog/a.jpg"));
  EXPECT_THAT(data.read(2, random, pixels.data()).error, HasSubstr("dog/b.JPEG"));
}

TEST_F(ImageFolderTest, WrongFoldersAreErrors) {
  const auto making = [this](const std::string& folder) {
    return [this, folder] { ImageFolder(folder, options(true)); };
  };
  EXPECT_THAT(making(folder_ + "/nowhere"),
              ThrowsMessage<std::invalid_argument>(HasSubstr("/nowhere")));
  EXPECT_THAT(making(folder_ + "/dog"),
              ThrowsMessage<std::invalid_argument>(HasSubstr("no sub-folders")));
  std::filesystem::create_directories(folder_ + "/emu");
  EXPECT_THAT(making(folder_), ThrowsMessage<std::invalid_argument>(
                                   AllOf(HasSubstr("/emu"), HasSubstr("holds no .jpg"))));
}

TEST_F(ImageFolderTest, SizesThatMakeNoSense) {
  ImageFolderOptions wrong = options(false);
  wrong.short_side = 13;
  EXPECT_THROW(ImageFolder(folder_, wrong), std::invalid_argument);
}

TEST(RandomPart, StaysInsideAndKeepsTheLimits) {
  Random random({3});
  double least = 1;
  double most = 0;
  for (int i = 0; i < 2000; ++i) {
    const Box box = random_part(400, 300, random);
    ASSERT_GE(box.left, 0);
    ASSERT_GE(box.top, 0);
    ASSERT_LE(box.left + box.width, 400);
    ASSERT_LE(box.top + box.height, 300);
    const double area = static_cast<double>(box.width * box.height) / (400.0 * 300.0);
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    ASSERT_GT(ratio, 0.74);
    ASSERT_LT(ratio, 1.35);
    least = std::min(least, area);
    most = std::max(most, area);
  }
  EXPECT_NEAR(least, 0.08, 0.02);
  EXPECT_GT(most, 0.9);
}

TEST(RandomPart, ExtremeShapesFallBackToTheMiddle) {
  Random random({4});
  const Box wide = random_part(1000, 10, random);
  EXPECT_EQ(wide.height, 10);
  EXPECT_EQ(wide.width, 13);
  EXPECT_EQ(wide.left, 493);
  const Box single = random_part(1, 1, random);
  EXPECT_EQ(single.width, 1);
  EXPECT_EQ(single.height, 1);
}

}  // namespace
}  // namespace gpipe::experiments
