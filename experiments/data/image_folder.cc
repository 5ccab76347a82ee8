#include "experiments/data/image_folder.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "experiments/data/jpeg.h"

namespace gpipe::experiments {
namespace {

namespace fs = std::filesystem;

constexpr double kLeastArea = 0.08;
constexpr double kLeastRatio = 3.0 / 4.0;
constexpr double kMostRatio = 4.0 / 3.0;
constexpr int kTries = 10;

bool is_jpeg_name(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg";
}

// The names in a folder that `keep` accepts. They are sorted, because file systems list in any
// order, but the order of the images must be fixed.
template <typename Keep>
std::vector<std::string> sorted_names(const fs::path& folder, Keep keep) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (keep(*it)) names.push_back(it->path().filename().string());
  }
  if (error) {
    throw std::invalid_argument("cannot list the image folder " + folder.string() + ": " +
                                error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& folder, ImageFolderOptions options)
    : folder_(folder), options_(options) {
  if (options.size <= 0 || options.short_side < options.size) {
    throw std::invalid_argument("images of size " + std::to_string(options.size) +
                                " cannot be cut out of a shorter side of " +
                                std::to_string(options.short_side));
  }
  classes_ = sorted_names(folder, [](const fs::directory_entry& entry) {
    std::error_code error;
    return entry.is_directory(error);
  });
  if (classes_.empty()) {
    throw std::invalid_argument("the image folder " + folder +
                                " has no sub-folders: expected one folder of JPEGs for each class");
  }
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    const std::vector<std::string> names =
        sorted_names(fs::path(folder) / classes_[label],
                     [](const fs::directory_entry& entry) { return is_jpeg_name(entry.path()); });
    if (names.empty()) {
      throw std::invalid_argument("the class folder " + folder + "/" + classes_[label] +
                                  " holds no .jpg or .jpeg file: remove it or fill it");
    }
    for (const std::string& name : names) {
      files_.emplace_back(classes_[label] + "/" + name, static_cast<int64_t>(label));
    }
  }
}

std::string ImageFolder::describe() const {
  return folder_ + ", " + std::to_string(size()) + " images of " + std::to_string(num_classes()) +
         " classes for " + (options_.train ? "training" : "validation");
}

ReadResult ImageFolder::read(int64_t index, Random& random, float* pixels) const {
  const auto& [file, label] = files_[static_cast<std::size_t>(index)];
  try {
    const RgbImage image = read_jpeg(folder_ + "/" + file);
    const int64_t size = options_.size;
    if (options_.train) {
      const Box part = random_part(image.width, image.height, random);
      const bool mirrored = random.uniform() < 0.5;
      resample(image, part, size, size, {0, 0, size, size}, mirrored, options_.normalization,
               pixels);
    } else {
      const int64_t shorter = std::min(image.width, image.height);
      const int64_t width = options_.short_side * image.width / shorter;
      const int64_t height = options_.short_side * image.height / shorter;
      // The place of the crop is rounded half to even, as in the published recipe's Python.
      const auto middle = [size](int64_t extent) {
        return static_cast<int64_t>(std::nearbyint(static_cast<double>(extent - size) / 2.0));
      };
      resample(image, {0, 0, image.width, image.height}, width, height,
               {middle(width), middle(height), size, size}, false, options_.normalization, pixels);
    }
  } catch (const std::runtime_error& error) {
    return {label, error.what()};
  }
  return {label, ""};
}

Box random_part(int64_t width, int64_t height, Random& random) {
  const double area = static_cast<double>(width) * static_cast<double>(height);
  for (int i = 0; i < kTries; ++i) {
    const double wanted = area * random.uniform(kLeastArea, 1.0);
    const double ratio = std::exp(random.uniform(std::log(kLeastRatio), std::log(kMostRatio)));
    const auto w = static_cast<int64_t>(std::llround(std::sqrt(wanted * ratio)));
    const auto h = static_cast<int64_t>(std::llround(std::sqrt(wanted / ratio)));
    if (w <= 0 || h <= 0 || w > width || h > height) continue;
    return {random.below(width - w + 1), random.below(height - h + 1), w, h};
  }
  // No random part has fit, so the image has an extreme shape. It gets the largest allowed part in
  // its middle.
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  int64_t w = width;
  int64_t h = height;
  if (ratio < kLeastRatio) {
    h = std::llround(static_cast<double>(width) / kLeastRatio);
  } else if (ratio > kMostRatio) {
    w = std::llround(static_cast<double>(height) * kMostRatio);
  }
  return {(width - w) / 2, (height - h) / 2, w, h};
}

}  // namespace gpipe::experiments
