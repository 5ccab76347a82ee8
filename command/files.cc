#include "command/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "command/made_folders.h"
#include "text/shown.h"

namespace gpipe::command {
namespace {

void create_folder_of(const std::filesystem::path& file) {
  if (!file.has_parent_path()) return;
  std::error_code error;
  make_folder(file.parent_path(), error);
  if (error) {
    throw std::runtime_error("cannot create the folder " +
                             text::shown(file.parent_path().string()) + ": " + error.message());
  }
}

// Writes and closes the file.
void write(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();  // passes everything to the system, so that errors show
  if (!file) throw std::runtime_error(std::strerror(errno));
}

// The path at which a file must be created. Symbolic links are followed, so that they stay.
std::filesystem::path target_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::path(path) : target;
}

// Whether the path exists and is neither a file nor a folder. Such a path must not be replaced by a
// file.
bool is_special(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

// Creates a new, empty file beside `target`. Never takes a file that exists, because it may belong
// to another process.
std::string create_beside(const std::filesystem::path& target) {
  static std::atomic<int> count{0};
  while (true) {
    const std::string path =
        target.string() + ".part" + std::to_string(getpid()) + "." + std::to_string(count++);
    const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      close(descriptor);
      return path;
    }
    if (errno != EEXIST) throw std::runtime_error(std::strerror(errno));
  }
}

// Writes `text` to a new file beside `target` and returns its path. The caller renames or removes
// it.
std::string write_beside(const std::filesystem::path& target, const std::string& text) {
  create_folder_of(target);
  const std::string temporary = create_beside(target);
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

std::string read_file(const std::string& path) {
  errno = 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             std::fclose);
  std::string text;
  if (file) {
    char part[1 << 16];
    while (const size_t bytes = std::fread(part, 1, sizeof part, file.get())) {
      text.append(part, bytes);
    }
  }
  if (file && std::ferror(file.get()) == 0) return text;
  throw std::runtime_error(
      "cannot read " + text::shown(path) + ": " +
      (errno == EISDIR ? std::string("it is a folder") : std::string(std::strerror(errno))));
}

std::string read_given_file(const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(error.what());
  }
  if (text.empty()) {
    throw std::invalid_argument("cannot read " + text::shown(path) + ": it is empty");
  }
  return text;
}

bool same_file(const std::string& a, const std::string& b) {
  if (is_special(a) || is_special(b)) return false;
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) || target_of(a) == target_of(b);
}

void write_file_atomically(const std::string& path, const std::string& text) {
  const std::filesystem::path target = target_of(path);
  try {
    if (is_special(path)) return write(path, text);
    const std::string temporary = write_beside(target, text);
    tell_made_folders();
    std::error_code error;
    std::filesystem::rename(temporary, target, error);
    if (!error) return;
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw std::runtime_error(error.message());
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot write " + text::shown(path) + ": " + error.what());
  }
}

void write_result(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  write_file_atomically(path, text);
  std::cerr << "written: " << text::shown(path) << std::endl;
}

void check_writable_file(const std::string& flag, const std::string& path) {
  try {
    if (is_special(path)) return;
    const std::filesystem::path target = target_of(path);
    if (std::filesystem::is_directory(target)) throw std::runtime_error("it is a folder");
    std::filesystem::remove(write_beside(target, ""));
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(flag + "=" + text::shown(path) +
                                " cannot be written: " + error.what());
  }
}

void check_writable_folder(const std::string& flag, const std::string& path) {
  try {
    std::filesystem::remove(write_beside(target_of(path) / "write_test", ""));
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(flag + "=" + text::shown(path) +
                                ": no files can be written there: " + error.what());
  }
}

}  // namespace gpipe::command
