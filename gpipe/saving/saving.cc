#include "gpipe/saving/saving.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/internal/call/between_runs.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/saving/checkpoint_files.h"
#include "gpipe/saving/checkpoint_run.h"
#include "gpipe/saving/draft_folder.h"
#include "safetensors/safetensors.h"
#include "text/shown.h"

namespace gpipe {
namespace {

using internal::throw_damaged;
using nlohmann::json;

// The absolute path, because other processes may have other current folders.
std::string absolute(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  if (!real) throw_damaged(path, std::strerror(errno));
  return real.get();
}

// Refuses a path with a NUL byte, because the system would take only the part before that byte.
void check_path(const std::string& path) {
  TORCH_CHECK_VALUE(
      path.find('\0') == std::string::npos, "the path of the checkpoint has a NUL byte behind ",
      text::in_quotes(path.c_str()), ", where the system would cut it; give a path without one");
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

void sync_file(const std::string& path) {
  const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool failed = opened < 0 || fsync(opened) != 0;
  const int error = errno;
  if (opened >= 0) close(opened);
  if (failed) throw_damaged(path, std::strerror(error));
}

// Writes Hugging Face's index, by which other readers find the tensors of a model in several files.
void write_index(const internal::DraftFolder& folder, int64_t parts) {
  json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  int64_t bytes = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const std::string name = internal::part_name("model", part, parts);
    const safetensors::File file(folder.file(name));
    for (const auto& [tensor, entry] : file.header().tensors) {
      index["weight_map"][tensor] = name;
      bytes += entry.end - entry.begin;
    }
  }
  index["metadata"]["total_size"] = bytes;
  const std::string path = folder.file(internal::index_name());
  std::ofstream out(path, std::ios::binary);
  out << index.dump(2) << "\n";
  out.close();
  if (!out) throw_damaged(path, std::strerror(errno));
  sync_file(path);
}

// Opens the checkpoint at `path`. Throws unless it is complete, and the same in all processes.
std::unique_ptr<internal::CheckpointFiles> open_folder(const internal::ModelParts& parts,
                                                       const std::string& call,
                                                       const std::string& path) {
  check_path(path);
  TORCH_CHECK_VALUE(!path.empty(), "the path of the checkpoint is empty");
  auto files = internal::open_checkpoint(path, parts.rank, parts.size);
  if (parts.processes != nullptr) {
    parts.processes->agree(call + ": the checkpoint",
                           internal::metadata_of(files->progress, internal::progress_name()));
  }
  return files;
}

// The folder of a checkpoint, which rank 0 makes and moves to its place.
class FolderSink final : public internal::CheckpointSink {
 public:
  FolderSink(const internal::ModelParts& parts, std::string path)
      : parts_(parts), path_(std::move(path)) {}

  bool is_in_memory() const override { return false; }

  void check() override {
    check_path(path_);
    if (parts_.processes != nullptr) parts_.processes->agree("save_checkpoint: the path", path_);
  }

  void begin(const std::vector<std::string>& files, bool writes) override {
    std::vector<std::string> all = files;
    if (parts_.size > 1) all.push_back(internal::index_name());
    if (parts_.world.rank() == 0) folder_.emplace(path_, all, internal::is_checkpoint_file);
    draft_ =
        parts_.exchange("save_checkpoint: the folder", folder_ ? absolute(folder_->path()) : "")
            .front();
    if (!writes || folder_) return;
    try_to_write([&] {
      if (is_folder(draft_)) return;
      throw_damaged(
          draft_,
          "process 0 has made this folder, but this process does not see it: the processes must "
          "see one file system");
    });
  }

  std::string write(const std::string& name, const internal::Named& tensors,
                    const Metadata& metadata) override {
    std::string fingerprint;
    try_to_write([&] {
      safetensors::write(draft_ + "/" + name, tensors, metadata);
      fingerprint = internal::fingerprint_of_file(draft_ + "/" + name);
    });
    return fingerprint;
  }

  void end(const at::Tensor& generator, const Metadata& metadata,
           const std::vector<std::string>&) override {
    if (error_) std::rethrow_exception(error_);
    // Without a fingerprint, the rank that was to write that file throws now.
    const bool is_whole = std::none_of(metadata.begin(), metadata.end(),
                                       [](const auto& each) { return each.second.empty(); });
    if (!folder_ || !is_whole) return;
    Metadata all = metadata;
    all[internal::progress_name()] = internal::fingerprint_of_progress(metadata, generator);
    if (parts_.size > 1) write_index(*folder_, parts_.size);
    safetensors::write(folder_->file(internal::progress_name()), {{"generator", generator}}, all);
    folder_->commit();
  }

 private:
  // Keeps what `write` throws for end(), behind the next exchange. If a process is lost, rank 0
  // removes the draft, so that others fail to write into it. Then that exchange throws the loss.
  template <typename Write>
  void try_to_write(const Write& write) {
    if (error_) return;
    try {
      write();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  const internal::ModelParts& parts_;
  const std::string path_;
  std::exception_ptr error_;  // why this process could not write its files
  std::optional<internal::DraftFolder> folder_;
  std::string draft_;  // the absolute path of the draft, the same in all processes
};

}  // namespace

void save_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                     const std::string& path) {
  if (pipe->world().replicas() > 1) {
    try {
      (void)pipe->parameter_hash();
    } catch (const c10::Error&) {
      internal::rethrow_with(std::current_exception(),
                             "save_checkpoint compares the replicas by their parameter_hash before "
                             "it writes anything");
    }
  }
  internal::save_run(
      "save_checkpoint", pipe, optimizer, progress,
      [&](const internal::ModelParts& parts) { return std::make_unique<FolderSink>(parts, path); });
}

void save_checkpoint(GPipe& pipe, ZeroOptimizer& optimizer, const Progress& progress,
                     const std::string& path) {
  save_checkpoint(pipe, static_cast<torch::optim::Optimizer&>(optimizer), progress, path);
}

bool check_checkpoint_path(const std::string& path) {
  check_path(path);
  return internal::check_place(path, internal::is_checkpoint_file);
}

namespace internal {

void check_replaceable(const std::string& path) {
  check_path(path);
  check_exchange(path, is_checkpoint_file);
}

}  // namespace internal

bool has_checkpoint(const std::string& path) {
  check_path(path);
  std::error_code error;
  return std::filesystem::is_directory(path, error) && !std::filesystem::is_empty(path, error);
}

Progress load_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const std::string& path) {
  return internal::load_run("load_checkpoint", pipe, optimizer,
                            [&](const internal::ModelParts& parts) {
                              return open_folder(parts, "load_checkpoint", path);
                            });
}

Progress load_checkpoint(GPipe& pipe, ZeroOptimizer& optimizer, const std::string& path) {
  return load_checkpoint(pipe, static_cast<torch::optim::Optimizer&>(optimizer), path);
}

Progress load_weights(GPipe& pipe, const std::string& path) {
  const internal::ModelParts parts{pipe};
  return internal::in_call(parts.processes, [&] {
    const internal::BetweenRuns between(pipe->pipeline());
    const std::unique_ptr<internal::CheckpointFiles> files =
        open_folder(parts, "load_weights", path);
    Progress found = internal::progress_of(files->progress);
    const internal::Named state = internal::state_of(pipe);
    internal::check_model(state, files->model, parts.processes == nullptr);
    (void)parts.exchange("load_weights: before reading", "");
    parts.read(state, files->model);
    (void)parts.exchange("load_weights: the end", "");
    return found;
  });
}

Progress read_progress(const std::string& path) {
  check_path(path);
  TORCH_CHECK_VALUE(!path.empty(), "the path of the checkpoint is empty");
  const safetensors::File progress(path + "/" + internal::progress_name());
  internal::check_progress(progress);
  return internal::progress_of(progress);
}

}  // namespace gpipe
