#include "experiments/common/output_path.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace gpipe::experiments {

std::string output_path(const std::string& path) {
  const char* working_directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || path.front() == '/' || working_directory == nullptr) return path;
  return (std::filesystem::path(working_directory) / path).lexically_normal().string();
}

void write_file_atomically(const std::string& path, const std::string& text) {
  const std::filesystem::path target(path);
  std::error_code error;
  if (target.has_parent_path()) {
    std::filesystem::create_directories(target.parent_path(), error);
    if (error) {
      throw std::runtime_error("cannot create the folder " + target.parent_path().string() + ": " +
                               error.message());
    }
  }
  const std::string temporary = path + ".part";
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << text;
    file.flush();
    if (!file) {
      throw std::runtime_error("cannot write " + temporary + ": " + std::strerror(errno));
    }
  }
  std::filesystem::rename(temporary, target, error);
  if (error) throw std::runtime_error("cannot write " + path + ": " + error.message());
}

}  // namespace gpipe::experiments
