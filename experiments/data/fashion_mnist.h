// FashionMnist: the Fashion-MNIST images (Xiao, Rasul, Vollgraf, 2017).
//
// These are 60,000 + 10,000 gray images of 28x28 in ten classes, in the idx format, gzipped or not.
#ifndef GPIPE_EXPERIMENTS_DATA_FASHION_MNIST_H_
#define GPIPE_EXPERIMENTS_DATA_FASHION_MNIST_H_

#include <string>
#include <vector>

#include "experiments/data/dataset.h"

namespace gpipe::experiments {

// The folder in which Debian's package dataset-fashion-mnist puts the files.
inline constexpr char kFashionMnistFolder[] = "/usr/share/datasets/fashion-mnist";

struct FashionMnistOptions {
  // The training images rather than the test images. Default: true.
  bool train = true;
  // Mirror each image with probability 1/2. Default: false.
  bool flip = false;
  // Enlarge the images by this factor in each direction, bilinearly. This is for networks that are
  // made for larger images and reduce them 32-fold. Default: 1.
  int64_t enlarge = 1;
  // Take only this many images from the beginning; 0 takes all. Default: 0.
  int64_t limit = 0;
};

// Holds all images in memory (47 MB). Pixels are normalized with the mean and standard deviation of
// the training set.
class FashionMnist : public Dataset {
 public:
  // Throws std::invalid_argument if `folder` does not hold the files and for an enlargement below
  // 1, and std::runtime_error that names the file if one is damaged, cut short or of another
  // format.
  FashionMnist(const std::string& folder, FashionMnistOptions options);

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  ImageShape shape() const override {
    return {1, stored_.height * options_.enlarge, stored_.width * options_.enlarge};
  }
  int64_t num_classes() const override { return 10; }
  std::string describe() const override;
  ReadResult read(int64_t index, Random& random, float* pixels) const override;

 private:
  struct Tap {  // An enlarged pixel is (1 - share) * first + share * second, in each direction.
    int64_t first;
    int64_t second;
    float share;
  };
  static std::vector<Tap> make_taps(int64_t size, int64_t enlarge);

  FashionMnistOptions options_;
  ImageShape stored_;  // one image of pixels_
  std::vector<Tap> rows_;
  std::vector<Tap> columns_;
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_FASHION_MNIST_H_
