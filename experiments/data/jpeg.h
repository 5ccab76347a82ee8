// read_jpeg: decodes JPEG files with libjpeg-turbo.
#ifndef GPIPE_EXPERIMENTS_DATA_JPEG_H_
#define GPIPE_EXPERIMENTS_DATA_JPEG_H_

#include <string>

#include "experiments/data/resample.h"

namespace gpipe::experiments {

// Reads a JPEG file of any color space (gray and CMYK too) as red, green, blue. Throws
// std::runtime_error that names the file if it is missing, cut short, damaged or not a JPEG. Damage
// that decoders commonly tolerate (such as stray bytes between markers) is tolerated. Thread-safe.
RgbImage read_jpeg(const std::string& path);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_JPEG_H_
