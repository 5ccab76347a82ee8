// ImageFolder: a folder of JPEG images with one sub-folder for each class, as ImageNet is usually
// kept.
#ifndef GPIPE_EXPERIMENTS_DATA_IMAGE_FOLDER_H_
#define GPIPE_EXPERIMENTS_DATA_IMAGE_FOLDER_H_

#include <string>
#include <utility>
#include <vector>

#include "experiments/data/dataset.h"
#include "experiments/data/resample.h"

namespace gpipe::experiments {

struct ImageFolderOptions {
  // Training: a random part of 8 to 100 % of the area and of aspect ratio 3:4 to 4:3, scaled to
  // size x size, mirrored with probability 1/2. Otherwise: the shorter side scaled to `short_side`,
  // then the size x size pixels in the middle. Default: true.
  bool train = true;
  int64_t size = 224;
  int64_t short_side = 256;
  Normalization normalization;
};

// The classes are the sub-folders in alphabetical order. Their images are the files that end in
// .jpg or .jpeg (in any case), directly in the sub-folder. A file is read when its image is
// requested.
class ImageFolder : public Dataset {
 public:
  // Throws std::invalid_argument that names the folder if it does not exist, has no sub-folder, or
  // one of these has no image, and for meaningless sizes.
  ImageFolder(const std::string& folder, ImageFolderOptions options);

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  ImageShape shape() const override { return {3, options_.size, options_.size}; }
  int64_t num_classes() const override { return static_cast<int64_t>(classes_.size()); }
  std::string describe() const override;
  ReadResult read(int64_t index, Random& random, float* pixels) const override;

  const std::vector<std::string>& classes() const { return classes_; }

 private:
  std::string folder_;
  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::vector<std::pair<std::string, int64_t>> files_;  // path below folder_, label
};

// The part of a width x height image that a training example shows.
Box random_part(int64_t width, int64_t height, Random& random);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_IMAGE_FOLDER_H_
