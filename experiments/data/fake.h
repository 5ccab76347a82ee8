// FakeDataset: random images of any size, for speed runs and for tests of the machinery.
#ifndef GPIPE_EXPERIMENTS_DATA_FAKE_H_
#define GPIPE_EXPERIMENTS_DATA_FAKE_H_

#include "experiments/data/dataset.h"

namespace gpipe::experiments {

// Image i is uniform noise in [0, 1) that depends only on (seed, i). Its label is i modulo the
// number of classes, and the mean of the image rises a little with the label, so that a network can
// learn something.
class FakeDataset : public Dataset {
 public:
  // Throws std::invalid_argument unless every number is positive.
  FakeDataset(int64_t size, ImageShape shape, int64_t num_classes, uint64_t seed);

  int64_t size() const override { return size_; }
  ImageShape shape() const override { return shape_; }
  int64_t num_classes() const override { return num_classes_; }
  std::string describe() const override;
  ReadResult read(int64_t index, Random& random, float* pixels) const override;

 private:
  int64_t size_;
  ImageShape shape_;
  int64_t num_classes_;
  uint64_t seed_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_FAKE_H_
