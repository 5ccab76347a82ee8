#include "experiments/common/files.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace gpipe::experiments {
namespace {

void create_folder_of(const std::filesystem::path& file) {
  if (!file.has_parent_path()) return;
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) {
    throw std::runtime_error("cannot create the folder " + file.parent_path().string() + ": " +
                             error.message());
  }
}

// Writes and closes; on failure the file is removed.
void write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();  // only now all of it has been handed to the system
  if (file) return;
  const std::string reason = std::strerror(errno);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  throw std::runtime_error("cannot write " + path + ": " + reason);
}

}  // namespace

std::string user_path(const std::string& path) {
  const char* working_directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || path.front() == '/' || working_directory == nullptr) return path;
  return (std::filesystem::path(working_directory) / path).lexically_normal().string();
}

void write_file_atomically(const std::string& path, const std::string& text) {
  create_folder_of(path);
  const std::string temporary = path + ".part";
  write_file(temporary, text);
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  throw std::runtime_error("cannot write " + path + ": " + error.message());
}

void check_writable_file(const std::string& flag, const std::string& path) {
  try {
    if (std::filesystem::is_directory(path)) throw std::runtime_error("it is a folder");
    create_folder_of(path);
    const std::string temporary = path + ".part";
    write_file(temporary, "");
    std::filesystem::remove(temporary);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(flag + "=" + path +
                                ": nothing can be written there: " + error.what());
  }
}

void check_writable_folder(const std::string& flag, const std::string& path) {
  try {
    check_writable_file(flag, (std::filesystem::path(path) / ".write_test").string());
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(flag + "=" + path + ": " + error.what());
  }
}

}  // namespace gpipe::experiments
