#include "experiments/data/fashion_mnist.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <utility>

namespace gpipe::experiments {
namespace {

constexpr int64_t kClasses = 10;
constexpr float kMean = 0.2860F;
constexpr float kDeviation = 0.3530F;
// The limit is larger than any real idx file of images. Without it, a damaged header could make us
// request terabytes.
constexpr int64_t kMostBytes = int64_t{1} << 32U;

struct GzipCloser {
  void operator()(gzFile file) const { gzclose(file); }
};

struct Idx {
  std::vector<int64_t> sizes;
  std::vector<uint8_t> bytes;
};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + " " + what +
                           ": install the data set anew or give another folder");
}

void read_exactly(gzFile file, const std::string& path, uint8_t* buffer, std::size_t count) {
  while (count > 0) {
    const auto piece = static_cast<unsigned>(std::min<std::size_t>(count, 1U << 20U));
    const int got = gzread(file, buffer, piece);
    if (got < 0) {
      int code = 0;
      const char* text = gzerror(file, &code);
      fail(path, std::string("is damaged (") + text + ")");
    }
    if (got == 0) fail(path, "ends too early");
    buffer += got;
    count -= static_cast<std::size_t>(got);
  }
}

std::string find_file(const std::string& folder, const std::string& name) {
  for (const char* suffix : {".gz", ""}) {
    const std::string path = folder + "/" + name + suffix;
    if (std::filesystem::is_regular_file(path)) return path;
  }
  throw std::invalid_argument(
      "no Fashion-MNIST in " + folder + ": it has no file " + name +
      ".gz. Install it (Debian: apt-get install dataset-fashion-mnist) or give the folder "
      "that holds it: --data=fashion-mnist:FOLDER");
}

// Reads an idx file: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
// dimension as a big-endian 32-bit number, then the bytes.
Idx read_idx(const std::string& path, std::size_t dimensions) {
  const std::unique_ptr<gzFile_s, GzipCloser> file(gzopen(path.c_str(), "rb"));
  if (!file) fail(path, "cannot be opened");
  gzbuffer(file.get(), 1U << 17U);
  uint8_t magic[4];
  read_exactly(file.get(), path, magic, sizeof magic);
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] != dimensions) {
    fail(path, "is not an idx file of bytes with " + std::to_string(dimensions) + " dimension(s)");
  }
  Idx idx;
  int64_t total = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    uint8_t size[4];
    read_exactly(file.get(), path, size, sizeof size);
    idx.sizes.push_back(int64_t{size[0]} << 24U | int64_t{size[1]} << 16U | int64_t{size[2]} << 8U |
                        int64_t{size[3]});
    if (idx.sizes.back() == 0 || idx.sizes.back() > kMostBytes / total) {
      fail(path,
           "has an impossible size in its header (0, or too large): it is damaged; get it again");
    }
    total *= idx.sizes.back();
  }
  idx.bytes.resize(static_cast<std::size_t>(total));
  read_exactly(file.get(), path, idx.bytes.data(), idx.bytes.size());
  // Reading one more byte makes zlib reach the end of the file and check its checksum.
  uint8_t beyond = 0;
  const int got = gzread(file.get(), &beyond, 1);
  if (got < 0) fail(path, "is damaged (wrong check sum)");
  if (got > 0) fail(path, "is longer than its header says");
  return idx;
}

}  // namespace

FashionMnist::FashionMnist(const std::string& folder, FashionMnistOptions options)
    : options_(options) {
  if (options.enlarge < 1) {
    throw std::invalid_argument("images can be enlarged once or more, not " +
                                std::to_string(options.enlarge) + " times");
  }
  const std::string prefix = options.train ? "train" : "t10k";
  const std::string images_path = find_file(folder, prefix + "-images-idx3-ubyte");
  const std::string labels_path = find_file(folder, prefix + "-labels-idx1-ubyte");
  Idx images = read_idx(images_path, 3);
  Idx labels = read_idx(labels_path, 1);
  if (images.sizes[0] != labels.sizes[0]) {
    fail(labels_path, "has " + std::to_string(labels.sizes[0]) + " labels for " +
                          std::to_string(images.sizes[0]) + " images");
  }
  if (*std::max_element(labels.bytes.begin(), labels.bytes.end()) >= kClasses) {
    fail(labels_path,
         "has a label above 9, so it is not Fashion-MNIST's: the labels there are 0 to 9");
  }
  stored_ = {1, images.sizes[1], images.sizes[2]};
  rows_ = make_taps(stored_.height, options.enlarge);
  columns_ = make_taps(stored_.width, options.enlarge);
  pixels_ = std::move(images.bytes);
  labels_ = std::move(labels.bytes);
  if (options.limit > 0 && options.limit < size()) {
    labels_.resize(static_cast<std::size_t>(options.limit));
    pixels_.resize(static_cast<std::size_t>(options.limit * stored_.size()));
  }
}

std::string FashionMnist::describe() const {
  return "Fashion-MNIST, " + std::to_string(size()) + " images for " +
         (options_.train ? "training" : "validation");
}

ReadResult FashionMnist::read(int64_t index, Random& random, float* pixels) const {
  const uint8_t* image = pixels_.data() + index * stored_.size();
  const bool mirrored = options_.flip && random.uniform() < 0.5;
  const auto width = static_cast<int64_t>(columns_.size());
  for (const Tap& row : rows_) {
    const uint8_t* upper = image + row.first * stored_.width;
    const uint8_t* lower = image + row.second * stored_.width;
    for (int64_t x = 0; x < width; ++x) {
      const Tap& column = columns_[static_cast<std::size_t>(mirrored ? width - 1 - x : x)];
      const auto between_rows = [&row, upper, lower](int64_t i) {
        return (1 - row.share) * static_cast<float>(upper[i]) +
               row.share * static_cast<float>(lower[i]);
      };
      const float value = (1 - column.share) * between_rows(column.first) +
                          column.share * between_rows(column.second);
      *pixels++ = (value / 255.0F - kMean) / kDeviation;
    }
  }
  return {labels_[static_cast<std::size_t>(index)], ""};
}

std::vector<FashionMnist::Tap> FashionMnist::make_taps(int64_t size, int64_t enlarge) {
  std::vector<Tap> taps;
  for (int64_t i = 0; i < size * enlarge; ++i) {
    const float center = (static_cast<float>(i) + 0.5F) / static_cast<float>(enlarge) - 0.5F;
    const float inside = std::clamp(center, 0.0F, static_cast<float>(size - 1));
    const auto first = static_cast<int64_t>(inside);
    taps.push_back({first, std::min(first + 1, size - 1), inside - static_cast<float>(first)});
  }
  return taps;
}

}  // namespace gpipe::experiments
