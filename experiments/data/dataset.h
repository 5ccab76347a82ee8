// Dataset: a set of labeled images, as the loader sees it. This header knows nothing of torch.
#ifndef GPIPE_EXPERIMENTS_DATA_DATASET_H_
#define GPIPE_EXPERIMENTS_DATA_DATASET_H_

#include <cstdint>
#include <string>

#include "experiments/data/random.h"

namespace gpipe::experiments {

struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t size() const { return channels * height * width; }
};

struct ReadResult {
  int64_t label = 0;
  // Why the image could not be read; empty if it could.
  std::string error;
};

// A set of labeled images. Immutable once made.
//
// Thread-safety: several threads may call `read` at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;
  virtual ImageShape shape() const = 0;
  virtual int64_t num_classes() const = 0;

  // A description for people: "Fashion-MNIST, 60000 images for training".
  virtual std::string describe() const = 0;

  // Writes image `index` (0 <= index < size()), augmented with draws from `random` and normalized,
  // to `pixels`: shape().size() floats in the order channel, row, column. A damaged or missing
  // image does not throw; the result says so, and `pixels` is then unspecified.
  virtual ReadResult read(int64_t index, Random& random, float* pixels) const = 0;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_DATASET_H_
