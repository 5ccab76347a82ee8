// Writes a small tree of JPEGs for the test of the program: write_images FOLDER. One training image
// is damaged.

#include <cstdint>
#include <filesystem>
#include <string>

#include "experiments/data/jpeg_testing.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  namespace testing = gpipe::experiments;
  const uint8_t bright = 220;
  const uint8_t dark = 30;
  for (const std::string part : {"train", "val"}) {
    for (const std::string color : {"blue", "red"}) {
      const std::string folder = std::string(argv[1]) + "/" + part + "/" + color;
      std::filesystem::create_directories(folder);
      const bool red = color == "red";
      for (int i = 0; i < 8; ++i) {
        testing::write_bytes(
            folder + "/" + std::to_string(i) + ".JPEG",
            testing::plain_jpeg(90 + i, 80, red ? bright : dark, dark, red ? dark : bright));
      }
    }
  }
  testing::write_bytes(std::string(argv[1]) + "/train/red/3.JPEG", "damaged");
}
