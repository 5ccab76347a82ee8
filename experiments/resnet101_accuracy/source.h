// Source: the images for training and for validation, as the flag --data asks for them.
#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SOURCE_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "experiments/data/dataset.h"
#include "experiments/resnet101_accuracy/settings.h"

namespace gpipe::experiments {

struct Source {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;
};

// `text`: "imagenet:FOLDER" (FOLDER/train and FOLDER/val, each with a folder of JPEGs for every
// class), "fashion-mnist", "fashion-mnist:FOLDER", or "fake" (random images of the current size).
// Throws std::invalid_argument for anything else, for folders that do not hold that, and if
// training and validation have different classes; std::runtime_error for damaged files.
Source open_source(const std::string& text, const Settings& settings, uint64_t seed);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SOURCE_H_
