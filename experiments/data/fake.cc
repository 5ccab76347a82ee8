#include "experiments/data/fake.h"

#include <stdexcept>

namespace gpipe::experiments {

FakeDataset::FakeDataset(int64_t size, ImageShape shape, int64_t num_classes, uint64_t seed)
    : size_(size), shape_(shape), num_classes_(num_classes), seed_(seed) {
  if (size <= 0 || shape.channels <= 0 || shape.height <= 0 || shape.width <= 0 ||
      num_classes <= 0) {
    throw std::invalid_argument(
        "fake images need a positive number of images, channels, rows, columns and classes, not " +
        std::to_string(size) + ", " + std::to_string(shape.channels) + ", " +
        std::to_string(shape.height) + ", " + std::to_string(shape.width) + " and " +
        std::to_string(num_classes));
  }
}

std::string FakeDataset::describe() const {
  return "fake data, " + std::to_string(size_) + " random images of " +
         std::to_string(shape_.channels) + "x" + std::to_string(shape_.height) + "x" +
         std::to_string(shape_.width);
}

ReadResult FakeDataset::read(int64_t index, Random& /*random*/, float* pixels) const {
  const int64_t label = index % num_classes_;
  Random noise({seed_, static_cast<uint64_t>(index)});
  const float low = static_cast<float>(label) / static_cast<float>(num_classes_) * 0.25F;
  const float scale = (1.0F - low) * 0x1.0p-24F;
  for (int64_t i = 0; i < shape_.size(); ++i) {
    pixels[i] = low + static_cast<float>(noise.next() >> 40U) * scale;
  }
  return {label, ""};
}

}  // namespace gpipe::experiments
