// JPEG testing: JPEG files for tests.
#ifndef GPIPE_EXPERIMENTS_DATA_JPEG_TESTING_H_
#define GPIPE_EXPERIMENTS_DATA_JPEG_TESTING_H_

#include <turbojpeg.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::experiments {

// The bytes of a JPEG of `pixels` in the TurboJPEG format `format` (TJPF_RGB, TJPF_GRAY, ...).
inline std::string encode_jpeg(int width, int height, const std::vector<uint8_t>& pixels,
                               int format = TJPF_RGB) {
  const tjhandle handle = tjInitCompress();
  unsigned char* data = nullptr;
  unsigned long size = 0;  // NOLINT: TurboJPEG's type
  const int subsampling = format == TJPF_GRAY ? TJSAMP_GRAY : TJSAMP_444;
  const int status = tjCompress2(handle, pixels.data(), width, 0, height, format, &data, &size,
                                 subsampling, 95, 0);
  std::string bytes;
  if (status == 0) bytes.assign(reinterpret_cast<char*>(data), size);
  tjFree(data);
  tjDestroy(handle);
  if (status != 0) throw std::runtime_error("tjCompress2 failed");
  return bytes;
}

// The bytes of a JPEG of one color.
inline std::string plain_jpeg(int width, int height, uint8_t red, uint8_t green, uint8_t blue) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < width * height; ++i) pixels.insert(pixels.end(), {red, green, blue});
  return encode_jpeg(width, height, pixels);
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_JPEG_TESTING_H_
