#include "experiments/resnet101_accuracy/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/data/jpeg_testing.h"

namespace gpipe::experiments {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Settings smoke() {
  Settings settings = settle(published_experiments().front(), CommonFlags());
  settings.limit_train = 0;
  return settings;
}

class SourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    for (const char* part : {"/train/a", "/train/b", "/val/a", "/val/b"}) {
      std::filesystem::create_directories(folder_ + part);
      for (int i = 0; i < 3; ++i) {
        write_bytes(folder_ + part + "/" + std::to_string(i) + ".jpg", plain_jpeg(80, 70, 9, 9, 9));
      }
    }
  }
  auto opening(const std::string& text) {
    return [text] { open_source(text, smoke(), 1); };
  }

  std::string folder_;
};

TEST_F(SourceTest, ImageNet) {
  const Source source = open_source("imagenet:" + folder_, smoke(), 1);
  EXPECT_EQ(source.train->size(), 6);
  EXPECT_EQ(source.validation->num_classes(), 2);
  EXPECT_EQ(source.train->shape().width, 64);
}

TEST_F(SourceTest, ALimitTakesImagesOfAllClasses) {
  Settings settings = smoke();
  settings.limit_train = 2;
  const Source source = open_source("imagenet:" + folder_, settings, 1);
  EXPECT_EQ(source.train->size(), 2);
  EXPECT_EQ(source.validation->size(), 6);
  std::vector<float> pixels(static_cast<std::size_t>(source.train->shape().size()));
  Random random({1});
  EXPECT_EQ(source.train->read(0, random, pixels.data()).label, 0);
  EXPECT_EQ(source.train->read(1, random, pixels.data()).label, 1);
}

TEST_F(SourceTest, Fake) {
  const Source source = open_source("fake", smoke(), 1);
  EXPECT_EQ(source.train->shape().channels, 3);
  EXPECT_EQ(source.train->num_classes(), 10);
}

TEST_F(SourceTest, Mistakes) {
  EXPECT_THAT(opening("cifar"), ThrowsMessage<std::invalid_argument>(HasSubstr("cifar")));
  EXPECT_THAT(opening("imagenet"), ThrowsMessage<std::invalid_argument>(HasSubstr("FOLDER")));
  EXPECT_THAT(opening("imagenet:/nowhere"),
              ThrowsMessage<std::invalid_argument>(HasSubstr("/nowhere/train")));
  EXPECT_THAT(opening("fashion-mnist:/nowhere"),
              ThrowsMessage<std::invalid_argument>(HasSubstr("/nowhere")));
  // This does not use remove_all, because LibTorch 2.11 exports one of another libstdc++, which
  // crashes here.
  const std::string removed = folder_ + "/val/b";
  for (const auto& image : std::filesystem::directory_iterator(removed)) {
    std::filesystem::remove(image.path());
  }
  std::filesystem::remove(removed);
  EXPECT_THAT(opening("imagenet:" + folder_),
              ThrowsMessage<std::invalid_argument>(HasSubstr("differ; only in train: b")));
}

}  // namespace
}  // namespace gpipe::experiments
