#include "experiments/resnet101_accuracy/source.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "command/files.h"
#include "command/wrong_value.h"
#include "experiments/data/fake.h"
#include "experiments/data/fashion_mnist.h"
#include "experiments/data/image_folder.h"

namespace gpipe::experiments {
namespace {

// ImageNet's numbers of images and classes, for --data=fake at full scale.
constexpr int64_t kImageNetImages = 1281167;
constexpr int64_t kImageNetValidation = 50000;
constexpr int64_t kImageNetClasses = 1000;
// The recipe scales the shorter side to 8/7 of the part that it crops: 256 to 224.
constexpr int64_t kMargin = 7;

// A dataset of some of the images of another dataset.
class Limited : public Dataset {
 public:
  Limited(std::shared_ptr<const Dataset> whole, int64_t size)
      : whole_(std::move(whole)), size_(size) {}
  int64_t size() const override { return size_; }
  ImageShape shape() const override { return whole_->shape(); }
  int64_t num_classes() const override { return whole_->num_classes(); }
  std::string describe() const override {
    return whole_->describe() + " (" + std::to_string(size_) + " of them used)";
  }
  ReadResult read(int64_t index, Random& random, float* pixels) const override {
    // The sample is spread over the whole dataset, because the images of a folder are sorted by
    // class.
    const auto share = static_cast<double>(whole_->size()) / static_cast<double>(size_);
    return whole_->read(static_cast<int64_t>(static_cast<double>(index) * share), random, pixels);
  }

 private:
  std::shared_ptr<const Dataset> whole_;
  int64_t size_;
};

// The first few names of `some` that `others` lacks; both are sorted.
std::string missing(const std::vector<std::string>& some, const std::vector<std::string>& others) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> names;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(),
                      std::back_inserter(names));
  const std::size_t all = names.size();
  names.resize(std::min(all, kShown));
  return absl::StrJoin(names, ", ") +
         (all > kShown ? " and " + std::to_string(all - kShown) + " more" : "");
}

Source open_images(const std::string& folder, const Settings& settings) {
  if (folder.empty()) {
    throw std::invalid_argument("--data=imagenet: say where it is: --data=imagenet:FOLDER");
  }
  for (const char* part : {"/train", "/val"}) {
    if (std::filesystem::is_directory(folder + part)) continue;
    throw std::invalid_argument("--data=imagenet:" + folder + ": there is no folder " + folder +
                                part +
                                "; expected FOLDER/train/CLASS/*.JPEG and "
                                "FOLDER/val/CLASS/*.JPEG");
  }
  ImageFolderOptions options;
  options.size = settings.network.image_size;
  options.short_side = settings.network.image_size + settings.network.image_size / kMargin;
  const auto train = std::make_shared<ImageFolder>(folder + "/train", options);
  options.train = false;
  const auto validation = std::make_shared<ImageFolder>(folder + "/val", options);
  if (train->classes() != validation->classes()) {
    const std::string without_val = missing(train->classes(), validation->classes());
    const std::string without_train = missing(validation->classes(), train->classes());
    throw std::invalid_argument("--data=imagenet:" + folder +
                                ": the class folders of train and val differ" +
                                (without_val.empty() ? "" : "; only in train: " + without_val) +
                                (without_train.empty() ? "" : "; only in val: " + without_train));
  }
  return {train, validation};
}

Source open_fashion_mnist(const std::string& folder, const Settings& settings) {
  FashionMnistOptions options;
  options.enlarge = settings.enlarge;
  options.flip = settings.flip;
  const std::string place = folder.empty() ? kFashionMnistFolder : folder;
  const auto train = std::make_shared<FashionMnist>(place, options);
  options.train = false;
  options.flip = false;
  return {train, std::make_shared<FashionMnist>(place, options)};
}

Source open_fake(const Settings& settings, uint64_t seed) {
  const bool full = settings.network.image_size >= 224;
  const ImageShape shape = {3, settings.network.image_size, settings.network.image_size};
  const int64_t classes = full ? kImageNetClasses : 10;
  return {
      std::make_shared<FakeDataset>(full ? kImageNetImages : 60000, shape, classes, seed),
      std::make_shared<FakeDataset>(full ? kImageNetValidation : 500, shape, classes, seed + 1)};
}

}  // namespace

Source open_source(const std::string& text, const Settings& settings, uint64_t seed) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string folder =
      colon == std::string::npos ? "" : command::user_path(text.substr(colon + 1));
  Source source;
  if (kind == "imagenet") {
    source = open_images(folder, settings);
  } else if (kind == "fashion-mnist") {
    source = open_fashion_mnist(folder, settings);
  } else if (text == "fake") {
    source = open_fake(settings, seed);
  } else {
    throw command::wrong_value("data", text,
                               "give imagenet:FOLDER, fashion-mnist, fashion-mnist:FOLDER or fake");
  }
  if (settings.limit_train > 0 && settings.limit_train < source.train->size()) {
    source.train = std::make_shared<Limited>(source.train, settings.limit_train);
  }
  return source;
}

}  // namespace gpipe::experiments
