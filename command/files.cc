#include "command/files.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <system_error>

namespace gpipe::command {
namespace {

void create_folder_of(const std::filesystem::path& file) {
  if (!file.has_parent_path()) return;
  std::error_code error;
  const bool created = std::filesystem::create_directories(file.parent_path(), error);
  if (error) {
    throw std::runtime_error("cannot create the folder " + file.parent_path().string() + ": " +
                             error.message());
  }
  // A name may be misspelled.
  if (created) std::cerr << "created the folder " << file.parent_path().string() << std::endl;
}

// Writes and closes.
void write(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();  // only now everything has been handed to the system
  if (!file) throw std::runtime_error(std::strerror(errno));
}

// Where a file is to be created: symbolic links are followed, so that they stay.
std::filesystem::path target_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::path(path) : target;
}

// Whether it exists and is neither a file nor a folder, so that no file may take its place.
bool is_special(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

// Writes `text` to a file beside `target`, which is then to be renamed or removed. Returns its
// path.
std::string write_beside(const std::filesystem::path& target, const std::string& text) {
  create_folder_of(target);
  std::string temporary = target.string() + ".part";
  try {
    write(temporary, text);
  } catch (const std::runtime_error&) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  return temporary;
}

}  // namespace

std::string user_path(const std::string& path) {
  const char* working_directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || path.front() == '/' || working_directory == nullptr) return path;
  return (std::filesystem::path(working_directory) / path).lexically_normal().string();
}

void write_file_atomically(const std::string& path, const std::string& text) {
  const std::filesystem::path target = target_of(path);
  try {
    if (is_special(path)) return write(path, text);
    const std::string temporary = write_beside(target, text);
    std::error_code error;
    std::filesystem::rename(temporary, target, error);
    if (!error) return;
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw std::runtime_error(error.message());
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot write " + path + ": " + error.what());
  }
}

void write_result(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  write_file_atomically(path, text);
  std::cerr << "written: " << path << std::endl;
}

void check_writable_file(const std::string& flag, const std::string& path) {
  try {
    if (is_special(path)) return;
    const std::filesystem::path target = target_of(path);
    if (std::filesystem::is_directory(target)) throw std::runtime_error("it is a folder");
    std::filesystem::remove(write_beside(target, ""));
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(flag + "=" + path + " cannot be written: " + error.what());
  }
}

void check_writable_folder(const std::string& flag, const std::string& path) {
  try {
    std::filesystem::remove(write_beside(target_of(path) / "write_test", ""));
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(flag + "=" + path +
                                ": no files can be written there: " + error.what());
  }
}

}  // namespace gpipe::command
