#include "experiments/data/loader.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gpipe::experiments {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A dataset in which image i has the values (i, a random number), and the label i.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  ImageShape shape() const override { return {1, 1, 2}; }
  int64_t num_classes() const override { return size_; }
  std::string describe() const override { return "numbers"; }
  ReadResult read(int64_t index, Random& random, float* pixels) const override {
    ++reads;
    if (index == throws_at) throw std::logic_error("a bug in the dataset");
    std::this_thread::sleep_for(pause);
    bool together = false;
    while (!together) {
      const std::lock_guard<std::mutex> lock(mutex);
      threads.insert(std::this_thread::get_id());
      together = threads.size() >= least_threads;
    }
    pixels[0] = static_cast<float>(index);
    pixels[1] = static_cast<float>(random.uniform());
    return {index, bad.count(index) > 0 ? "image " + std::to_string(index) + " is bad" : ""};
  }

  int64_t size_;
  int64_t throws_at = -1;
  std::set<int64_t> bad;
  std::chrono::microseconds pause{0};
  size_t least_threads = 1;  // no read ends before this many threads have come
  mutable std::atomic<int64_t> reads{0};
  mutable std::mutex mutex;
  mutable std::set<std::thread::id> threads;
};

LoaderOptions with_batch(int64_t batch_size) {
  LoaderOptions options;
  options.batch_size = batch_size;
  return options;
}

struct Epoch {
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> labels;

  at::Tensor all_images() const { return at::cat(images); }
  std::vector<int64_t> all_labels() const {
    const at::Tensor all = at::cat(labels);
    return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
  }
};

Epoch run(Loader& loader, int64_t epoch) {
  Epoch result;
  loader.start(epoch);
  while (const std::optional<Batch> batch = loader.next()) {
    EXPECT_EQ(batch->images.size(0), batch->labels.size(0));
    result.images.push_back(batch->images);
    result.labels.push_back(batch->labels);
  }
  EXPECT_FALSE(loader.next()) << "the end stays the end";
  return result;
}

std::vector<int64_t> range(int64_t size) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < size; ++i) numbers.push_back(i);
  return numbers;
}

TEST(Loader, InOrderWithAShortLastBatch) {
  Loader loader(std::make_shared<Numbers>(50), with_batch(20));
  EXPECT_EQ(loader.batches(), 3);
  const Epoch epoch = run(loader, 0);
  ASSERT_EQ(epoch.images.size(), 3u);
  EXPECT_EQ(epoch.images[0].sizes(), (std::vector<int64_t>{20, 1, 1, 2}));
  EXPECT_EQ(epoch.images[2].size(0), 10);
  EXPECT_EQ(epoch.all_labels(), range(50));
}

TEST(Loader, DropLast) {
  LoaderOptions options = with_batch(20);
  options.drop_last = true;
  Loader loader(std::make_shared<Numbers>(50), options);
  EXPECT_EQ(loader.batches(), 2);
  EXPECT_EQ(run(loader, 0).all_labels(), range(40));
}

TEST(Loader, ShufflesAnewInEachEpoch) {
  LoaderOptions options = with_batch(16);
  options.shuffle = true;
  Loader loader(std::make_shared<Numbers>(100), options);
  std::vector<int64_t> first = run(loader, 0).all_labels();
  EXPECT_NE(first, range(100));
  EXPECT_NE(first, run(loader, 1).all_labels());
  EXPECT_EQ(first, run(loader, 0).all_labels());
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, range(100));
}

class LoaderWorkersTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(LoaderWorkersTest, NothingDependsOnTheNumberOfThreads) {
  LoaderOptions options = with_batch(33);
  options.shuffle = true;
  options.replace_unreadable = true;
  options.seed = 5;
  const auto dataset = std::make_shared<Numbers>(500);
  dataset->bad = {3, 4, 499};
  options.workers = 0;
  Loader reference(dataset, options);
  options.workers = GetParam();
  options.prefetch = 3;
  Loader loader(dataset, options);
  dataset->pause = std::chrono::microseconds(20);
  for (int64_t epoch : {0, 7}) {
    EXPECT_TRUE(at::equal(run(loader, epoch).all_images(), run(reference, epoch).all_images()));
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, LoaderWorkersTest, ::testing::Values(1, 2, 5));

TEST(Loader, ReadsInSeveralThreadsAndLeavesATensPoolAlone) {
  LoaderOptions options = with_batch(64);
  options.workers = 3;
  const auto dataset = std::make_shared<Numbers>(256);
  dataset->least_threads = 2;
  Loader loader(dataset, options);
  const int threads = at::get_num_threads();
  run(loader, 0);
  EXPECT_GE(dataset->threads.size(), 2u);
  EXPECT_EQ(dataset->threads.count(std::this_thread::get_id()), 0u);
  EXPECT_EQ(at::get_num_threads(), threads);
}

TEST(Loader, ReadsAheadButNotWithoutBound) {
  LoaderOptions options = with_batch(10);
  options.prefetch = 3;
  options.workers = 2;
  const auto dataset = std::make_shared<Numbers>(1000);
  Loader loader(dataset, options);
  loader.start(0);
  loader.next();
  // One batch is taken, and three more may be made ahead, which makes 40 reads. The test waits for
  // them.
  while (dataset->reads < 40) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // Leaves time for a read too many. On a slow machine the check below may miss such a read, but
  // cannot fail.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(dataset->reads, 40);
}

TEST(Loader, UnreadableImagesAreLeftOutAndCounted) {
  const auto dataset = std::make_shared<Numbers>(12);
  dataset->bad = {1, 4, 5, 6, 7, 10};
  Loader loader(dataset, with_batch(4));
  EXPECT_EQ(run(loader, 0).all_labels(), (std::vector<int64_t>{0, 2, 3, 8, 9, 11}));
  run(loader, 1);
  EXPECT_EQ(loader.unreadable(), 6) << "each image counts once";
  const std::vector<std::string> examples = loader.unreadable_examples();
  ASSERT_EQ(examples.size(), 3u);
  EXPECT_EQ(examples[0], "image 1 is bad");
}

TEST(Loader, UnreadableImagesAreReplacedInTraining) {
  const auto dataset = std::make_shared<Numbers>(6);
  dataset->bad = {1, 2, 5};
  LoaderOptions options = with_batch(3);
  options.replace_unreadable = true;
  Loader loader(dataset, options);
  EXPECT_EQ(run(loader, 0).all_labels(), (std::vector<int64_t>{0, 3, 3, 3, 4, 0}));
  EXPECT_EQ(loader.unreadable(), 3);
}

TEST(Loader, NothingReadable) {
  const auto dataset = std::make_shared<Numbers>(3);
  dataset->bad = {0, 1, 2};
  LoaderOptions options = with_batch(2);
  {
    Loader loader(dataset, options);
    EXPECT_TRUE(run(loader, 0).images.empty());
  }
  options.replace_unreadable = true;
  Loader loader(dataset, options);
  loader.start(0);
  EXPECT_THAT([&] { loader.next(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("not one image")));
}

TEST(Loader, AnExceptionReachesTheCaller) {
  const auto dataset = std::make_shared<Numbers>(100);
  dataset->throws_at = 50;
  for (int64_t workers : {0, 1, 3}) {
    LoaderOptions options = with_batch(10);
    options.workers = workers;
    Loader loader(dataset, options);
    loader.start(0);
    EXPECT_THAT(
        [&] {
          while (loader.next()) {
          }
        },
        ThrowsMessage<std::logic_error>(HasSubstr("a bug in the dataset")));
    dataset->throws_at = -1;
    EXPECT_EQ(run(loader, 1).all_labels(), range(100)) << "and the loader can be used again";
    dataset->throws_at = 50;
  }
}

TEST(Loader, CanBeAbandoned) {
  const auto dataset = std::make_shared<Numbers>(100000);
  dataset->pause = std::chrono::microseconds(100);
  LoaderOptions options = with_batch(1000);
  options.workers = 3;
  Loader loader(dataset, options);
  loader.start(0);
  loader.start(1);
  EXPECT_TRUE(loader.next());
}

TEST(Loader, RefusesNumbersThatMakeNoSense) {
  const auto dataset = std::make_shared<Numbers>(5);
  EXPECT_THROW(Loader(dataset, with_batch(0)), std::invalid_argument);
  EXPECT_THROW(Loader(nullptr, with_batch(1)), std::invalid_argument);
  LoaderOptions options = with_batch(6);
  options.drop_last = true;
  EXPECT_THAT([&] { Loader(dataset, options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("not one full batch")));
  options = with_batch(1);
  options.workers = -1;
  EXPECT_THROW(Loader(dataset, options), std::invalid_argument);
  options.workers = 1;
  options.prefetch = 0;
  EXPECT_THROW(Loader(dataset, options), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
