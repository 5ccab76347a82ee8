// CheckpointFiles: the files of a checkpoint, which one process or several have written.
#ifndef GPIPE_SAVING_CHECKPOINT_FILES_H_
#define GPIPE_SAVING_CHECKPOINT_FILES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "safetensors/safetensors.h"

namespace gpipe::internal {

// The name of a file of a checkpoint. `what`: "model" or "optimizer"; each process has a part of
// both. A single part is called "model.safetensors", and the second of four parts
// "model-00002-of-00004.safetensors".
std::string part_name(const std::string& what, int64_t part, int64_t parts);
std::string progress_name();
// The value of "format" in the metadata of the progress.
std::string format_name();
// The name of Hugging Face's index of the parts of a model, for other readers.
std::string index_name();
// Whether a checkpoint, written by any number of processes, may have a file of this name.
bool is_checkpoint_file(const std::string& name);

// The fingerprint of a file, like "1048576 bytes, CRC-32 1c291ca3". Throws std::runtime_error with
// the path and the reason.
std::string fingerprint_of_file(const std::string& path);
// The fingerprint of the file that has this image, whose data must be here.
std::string fingerprint_of_image(const safetensors::Image& image);
// The fingerprint of the contents of the progress file: of the generator's state, and of the
// metadata except this fingerprint itself.
std::string fingerprint_of_progress(std::map<std::string, std::string> metadata,
                                    const at::Tensor& generator);

[[noreturn]] void throw_damaged(const std::string& path, const std::string& reason);

// The metadata under `key`. Throws std::runtime_error if there is none.
const std::string& metadata_of(const safetensors::File& file, const std::string& key);

// Throws std::runtime_error with the path and the reason if the file does not belong to a
// checkpoint that this program reads, or is damaged.
void check_progress(const safetensors::File& progress);

// The tensors of several files, as if they were in one file.
class Shards {
 public:
  // Throws std::runtime_error for a tensor that another file has, too.
  void add(std::unique_ptr<safetensors::File> file);

  const std::vector<std::unique_ptr<safetensors::File>>& files() const { return files_; }
  const std::map<std::string, safetensors::Entry>& tensors() const { return tensors_; }
  at::Tensor read(const std::string& name) const { return file_of_.at(name)->read(name); }
  // The path of the first file, for messages.
  const std::string& path() const { return files_.front()->path(); }

 private:
  std::vector<std::unique_ptr<safetensors::File>> files_;
  std::map<std::string, safetensors::Entry> tensors_;
  std::map<std::string, const safetensors::File*> file_of_;
};

// All files of a checkpoint, open. All that is read belongs to one checkpoint, even if the folder
// is replaced meanwhile.
struct CheckpointFiles {
  // `open`: opens the file of this name.
  using Open = std::function<std::unique_ptr<safetensors::File>(const std::string& name)>;
  explicit CheckpointFiles(const Open& open);

  std::unique_ptr<safetensors::File> progress_file;
  const safetensors::File& progress;
  Shards model;
  Shards optimizer;
};

// Opens a checkpoint, and compares the sizes and CRC-32 of the files that are the share of process
// `rank` of `size`: all files if `size` is 1. Throws std::runtime_error with the path and the
// reason.
std::unique_ptr<CheckpointFiles> open_checkpoint(const std::string& path, int64_t rank,
                                                 int64_t size);

// The images of the files of a checkpoint, by their names.
using CheckpointImages = std::map<std::string, safetensors::Image>;
// The names of the files of the model and of the optimizer that a progress file names.
std::vector<std::string> parts_of(const safetensors::File& progress);
// The same for a checkpoint in memory. Compares the fingerprints of those files whose data are
// here. Requirements: all files are there, with data or without.
std::unique_ptr<CheckpointFiles> open_images(const CheckpointImages& images);

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_CHECKPOINT_FILES_H_
