#include "experiments/data/jpeg.h"

#include <turbojpeg.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace gpipe::experiments {
namespace {

struct Destroyer {
  void operator()(void* handle) const { tjDestroy(handle); }
};

// A decoder costs more than a small image, so each thread keeps one.
tjhandle decoder() {
  thread_local const std::unique_ptr<void, Destroyer> handle(tjInitDecompress());
  if (!handle) throw std::runtime_error("libjpeg-turbo could not make a decoder");
  return handle.get();
}

std::vector<uint8_t> read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    throw std::runtime_error(path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read"));
  }
  if (bytes.empty()) throw std::runtime_error(path + ": the file is empty");
  return bytes;
}

// Converts CMYK as Adobe writes it: inverted, so that 255 means no ink.
RgbImage from_inverted_cmyk(int width, int height, const std::vector<uint8_t>& cmyk) {
  RgbImage image{width, height, {}};
  image.pixels.resize(cmyk.size() / 4 * 3);
  for (std::size_t i = 0; i < cmyk.size() / 4; ++i) {
    const unsigned black = cmyk[4 * i + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      image.pixels[3 * i + c] = static_cast<uint8_t>(cmyk[4 * i + c] * black / 255);
    }
  }
  return image;
}

}  // namespace

RgbImage read_jpeg(const std::string& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  const tjhandle handle = decoder();
  const auto check = [&path, handle](int status) {
    if (status == 0) return;
    const std::string text = tjGetErrorStr2(handle);
    // After a warning of the decoder the image is usable, unless the warning says that the file's
    // end is missing.
    if (tjGetErrorCode(handle) == TJERR_WARNING &&
        text.find("Premature end") == std::string::npos) {
      return;
    }
    throw std::runtime_error(path + ": " + text);
  };
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colors = 0;
  check(tjDecompressHeader3(handle, bytes.data(), bytes.size(), &width, &height, &subsampling,
                            &colors));
  const bool cmyk = colors == TJCS_CMYK || colors == TJCS_YCCK;
  const int format = cmyk ? TJPF_CMYK : TJPF_RGB;
  std::vector<uint8_t> pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                              static_cast<std::size_t>(tjPixelSize[format]));
  check(tjDecompress2(handle, bytes.data(), bytes.size(), pixels.data(), width, 0, height, format,
                      0));
  if (cmyk) return from_inverted_cmyk(width, height, pixels);
  return {width, height, std::move(pixels)};
}

}  // namespace gpipe::experiments
