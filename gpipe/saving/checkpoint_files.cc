#include "gpipe/saving/checkpoint_files.h"

#include <dirent.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "text/shown.h"

namespace gpipe::internal {
namespace {

constexpr const char* kEnd = ".safetensors";

class Fingerprint {
 public:
  void add(const void* data, size_t bytes) {
    crc_ = crc32_z(crc_, static_cast<const unsigned char*>(data), bytes);
    bytes_ += bytes;
  }
  std::string text() const {
    char text[64];
    std::snprintf(text, sizeof text, "%llu bytes, CRC-32 %08lx",
                  static_cast<unsigned long long>(bytes_), crc_);
    return text;
  }

 private:
  uLong crc_ = crc32_z(0, nullptr, 0);
  uint64_t bytes_ = 0;
};

// The files of "model" or "optimizer" that the progress names, in order.
std::vector<std::string> parts_of(const safetensors::File& progress, const std::string& what) {
  std::vector<std::string> names;
  for (const auto& [key, value] : progress.header().metadata) {
    const bool is_part = key.rfind(what, 0) == 0 && is_checkpoint_file(key);
    if (is_part) names.push_back(key);
  }
  if (names.empty()) throw_damaged(progress.path(), "it does not name a file of the " + what);
  return names;
}

void check_part(const safetensors::File& progress, const std::string& path,
                const std::string& now) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string& then = metadata_of(progress, name);
  if (now != then) {
    throw_damaged(path, "it has " + now + ", but it had " + then + " when it was saved");
  }
}

}  // namespace

std::string part_name(const std::string& what, int64_t part, int64_t parts) {
  if (parts == 1) return what + kEnd;
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05lld-of-%05lld", static_cast<long long>(part) + 1,
                static_cast<long long>(parts));
  return what + numbers + kEnd;
}
std::string format_name() { return "gpipe checkpoint 1"; }
std::string progress_name() { return "progress.safetensors"; }
std::string index_name() { return "model.safetensors.index.json"; }

bool is_checkpoint_file(const std::string& name) {
  if (name == progress_name() || name == index_name()) return true;
  for (const char* what : {"model", "optimizer"}) {
    if (name.rfind(what, 0) != 0) continue;
    long long part = 0, parts = 1;  // NOLINT(google-runtime-int): as sscanf() has them
    if (name == part_name(what, 0, 1)) return true;
    if (std::sscanf(name.c_str() + std::strlen(what), "-%lld-of-%lld.", &part, &parts) == 2 &&
        part >= 1 && parts > 1 && name == part_name(what, part - 1, parts)) {
      return true;
    }
  }
  return false;
}

void throw_damaged(const std::string& path, const std::string& reason) {
  throw std::runtime_error(text::in_quotes(path) + ": " + reason);
}

std::string fingerprint_of_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) throw_damaged(path, std::strerror(errno));
  std::vector<unsigned char> part(size_t{1} << 20);
  Fingerprint result;
  while (const size_t got = std::fread(part.data(), 1, part.size(), file.get())) {
    result.add(part.data(), got);
  }
  if (std::ferror(file.get()) != 0) throw_damaged(path, std::strerror(errno));
  return result.text();
}

std::string fingerprint_of_image(const safetensors::Image& image) {
  const uint64_t length = image.header.size();
  unsigned char bytes[sizeof length];  // little-endian, as in a file
  for (size_t i = 0; i < sizeof length; ++i) {
    bytes[i] = static_cast<unsigned char>(length >> (8 * i));
  }
  Fingerprint result;
  result.add(bytes, sizeof length);
  result.add(image.header.data(), image.header.size());
  result.add(image.data.const_data_ptr(), image.data.nbytes());
  return result.text();
}

std::string fingerprint_of_progress(std::map<std::string, std::string> metadata,
                                    const at::Tensor& generator) {
  metadata.erase(progress_name());
  Fingerprint result;
  for (const auto& [key, value] : metadata) {
    const std::string line = key + "=" + value + "\n";
    result.add(line.data(), line.size());
  }
  result.add(generator.const_data_ptr(), generator.nbytes());
  return result.text();
}

const std::string& metadata_of(const safetensors::File& file, const std::string& key) {
  const auto& all = file.header().metadata;
  const auto found = all.find(key);
  if (found == all.end()) {
    throw_damaged(file.path(), "it has no " + text::in_quotes(key) + " in its metadata");
  }
  return found->second;
}

void Shards::add(std::unique_ptr<safetensors::File> file) {
  for (const auto& [name, entry] : file->header().tensors) {
    if (!tensors_.emplace(name, entry).second) {
      throw_damaged(file->path(),
                    "it has " + text::in_quotes(name) + ", which another file has, too");
    }
    file_of_.emplace(name, file.get());
  }
  files_.push_back(std::move(file));
}

void check_progress(const safetensors::File& progress) {
  const std::string& format = metadata_of(progress, "format");
  if (format != format_name()) {
    throw_damaged(progress.path(), "it is " + text::quoted(format) + ", this program reads " +
                                       text::in_quotes(format_name()));
  }
  const bool whole = progress.header().tensors.count("generator") == 1;
  const std::string found =
      whole ? fingerprint_of_progress(progress.header().metadata, progress.read("generator")) : "";
  if (found != metadata_of(progress, progress_name())) {
    throw_damaged(progress.path(), "it is damaged");
  }
}

CheckpointFiles::CheckpointFiles(const Open& open)
    : progress_file(open(progress_name())), progress(*progress_file) {
  check_progress(progress);
  for (const auto& [what, shards] : {std::pair("model", &model), {"optimizer", &optimizer}}) {
    for (const std::string& name : parts_of(progress, what)) {
      shards->add(open(name));
    }
  }
}

std::vector<std::string> parts_of(const safetensors::File& progress) {
  std::vector<std::string> names = parts_of(progress, "model");
  for (std::string& name : parts_of(progress, "optimizer")) names.push_back(std::move(name));
  return names;
}

std::unique_ptr<CheckpointFiles> open_images(const CheckpointImages& images) {
  auto files = std::make_unique<CheckpointFiles>([&](const std::string& name) {
    return std::make_unique<safetensors::File>("snapshot/" + name, images.at(name));
  });
  for (const auto& [name, image] : images) {
    if (name == progress_name() || !image.data.defined()) continue;
    check_part(files->progress, "snapshot/" + name, fingerprint_of_image(image));
  }
  return files;
}

std::unique_ptr<CheckpointFiles> open_checkpoint(const std::string& path, int64_t rank,
                                                 int64_t size) {
  constexpr int kTries = 100;
  for (int left = kTries; left > 0; --left) {
    // The folder is kept open, so that no other folder gets its inode number meanwhile (is_there()
    // compares the numbers).
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
    if (!folder) {
      const char* const reason = std::strerror(errno);
      throw_damaged(path, "there is no checkpoint: " + std::string(reason) +
                              "; give the path that save_checkpoint was given, or ask "
                              "has_checkpoint(path) before, if the run may be the first");
    }
    const auto is_there = [&] {
      struct stat opened {
      }, there{};
      return fstat(dirfd(folder.get()), &opened) == 0 && stat(path.c_str(), &there) == 0 &&
             opened.st_ino == there.st_ino && opened.st_dev == there.st_dev;
    };
    try {
      auto files = std::make_unique<CheckpointFiles>([&](const std::string& name) {
        return std::make_unique<safetensors::File>(path + "/" + name);
      });
      int64_t number = 0;
      for (const Shards* shards : {&files->model, &files->optimizer}) {
        for (const auto& file : shards->files()) {
          if (number++ % size == rank) {
            check_part(files->progress, file->path(), fingerprint_of_file(file->path()));
          }
        }
      }
      // If this process compares all fingerprints (`size` is 1), it would have noticed files of two
      // checkpoints. Otherwise the folder must not have been replaced while it was read.
      if (size == 1 || is_there()) return files;
    } catch (const std::runtime_error&) {
      if (is_there()) throw;
    }
  }
  throw_damaged(path, "another program replaced it each time that it was read");
}

}  // namespace gpipe::internal
