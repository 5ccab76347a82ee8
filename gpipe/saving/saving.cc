#include "gpipe/saving/saving.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <dirent.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpipe/saving/draft_folder.h"
#include "gpipe/saving/optimizer_record.h"
#include "safetensors/safetensors.h"

namespace gpipe {
namespace {

using nlohmann::json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kProgress = "progress.safetensors";
constexpr const char* kFormat = "gpipe checkpoint 1";

[[noreturn]] void damaged(const std::string& path, const std::string& reason) {
  throw std::runtime_error("'" + path + "': " + reason);
}

// "1048576 bytes, CRC-32 1c291ca3"
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

std::string fingerprint(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) damaged(path, std::strerror(errno));
  std::vector<unsigned char> part(size_t{1} << 20);
  Fingerprint result;
  while (const size_t got = std::fread(part.data(), 1, part.size(), file.get())) {
    result.add(part.data(), got);
  }
  if (std::ferror(file.get()) != 0) damaged(path, std::strerror(errno));
  return result.text();
}

// Of what the third file holds: the generator's state, and its metadata but for this.
std::string fingerprint(std::map<std::string, std::string> metadata, const at::Tensor& generator) {
  metadata.erase(kProgress);
  Fingerprint result;
  for (const auto& [key, value] : metadata) {
    const std::string line = key + "=" + value + "\n";
    result.add(line.data(), line.size());
  }
  result.add(generator.const_data_ptr(), generator.nbytes());
  return result.text();
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Parameters and buffers, each once, under its first name.
Named state_of(GPipe& pipe) {
  Named state;
  std::unordered_set<const c10::TensorImpl*> seen;  // tied weights
  for (const auto& all : {pipe->named_parameters(), pipe->named_buffers()}) {
    for (const auto& item : all) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      state.emplace_back(item.key(), tensor.detach());
    }
  }
  return state;
}

internal::ParameterNames names_of(GPipe& pipe) {
  internal::ParameterNames names;
  for (const auto& parameter : pipe->named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  return names;
}

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// What is wrong with a generator's state, or nothing.
std::string fault_of(const at::Tensor& state) {
  try {
    at::detail::createCPUGenerator().set_state(state);
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

const std::string& metadata(const safetensors::File& file, const std::string& key) {
  const auto& all = file.header().metadata;
  const auto found = all.find(key);
  if (found == all.end()) damaged(file.path(), "it has no '" + key + "' in its metadata");
  return found->second;
}

int64_t number(const safetensors::File& file, const std::string& key) {
  const std::string& text = metadata(file, key);
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < 0) {
    damaged(file.path(), "'" + key + "' is '" + text + "'");
  }
  return value;
}

// The files of a checkpoint, open and whole.
struct Files {
  explicit Files(const std::string& path)
      : progress(path + "/" + kProgress),
        model(path + "/" + kModel),
        optimizer(path + "/" + kOptimizer) {
    if (metadata(progress, "format") != kFormat) {
      damaged(path,
              "it is '" + metadata(progress, "format") + "', this program reads '" + kFormat + "'");
    }
    const bool whole = progress.header().tensors.count("generator") == 1;
    const std::string found =
        whole ? fingerprint(progress.header().metadata, progress.read("generator")) : "";
    if (found != metadata(progress, kProgress)) damaged(progress.path(), "it is damaged");
    for (const auto& [name, file] : {std::pair(kModel, &model), {kOptimizer, &optimizer}}) {
      const std::string now = fingerprint(file->path());
      if (now != metadata(progress, name)) {
        damaged(file->path(),
                "it has " + now + ", and had " + metadata(progress, name) + " when it was saved");
      }
    }
  }
  safetensors::File progress, model, optimizer;
};

// Another process may replace the folder meanwhile. Files of two checkpoints do not have each
// other's fingerprints, which are taken when all are open: that fails, and is tried again.
std::unique_ptr<Files> files_of(const std::string& path) {
  constexpr int kTries = 100;
  for (int left = kTries; left > 0; --left) {
    // While it is open, no other folder has its number.
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
    if (!folder) damaged(path, std::strerror(errno));
    try {
      return std::make_unique<Files>(path);
    } catch (const std::runtime_error&) {
      struct stat opened {
      }, there{};
      const bool is_there = fstat(dirfd(folder.get()), &opened) == 0 &&
                            stat(path.c_str(), &there) == 0 && opened.st_ino == there.st_ino &&
                            opened.st_dev == there.st_dev;
      if (is_there) throw;
    }
  }
  damaged(path, "it was replaced each time that it was read");
}

// The model's tensors are those of the file, with their shapes and types.
void check_model(const Named& state, const safetensors::File& file) {
  std::map<std::string, safetensors::Entry> left = file.header().tensors;
  for (const auto& [name, tensor] : state) {
    const auto entry = left.find(name);
    TORCH_CHECK_VALUE(entry != left.end(), "'", file.path(), "' has no '", name,
                      "'; is it of another model?");
    TORCH_CHECK_VALUE(at::IntArrayRef(entry->second.shape) == tensor.sizes() &&
                          entry->second.type == safetensors::type_name(tensor.scalar_type()),
                      "'", name, "' is ", entry->second.type, " ",
                      at::IntArrayRef(entry->second.shape), " in '", file.path(), "', and ",
                      safetensors::type_name(tensor.scalar_type()), " ", tensor.sizes(),
                      " in the model");
    TORCH_CHECK_VALUE(!tensor.is_meta(), "'", name, "' is on meta and can have no values");
    left.erase(entry);
  }
  TORCH_CHECK_VALUE(left.empty(), "'", file.path(), "' has '", left.begin()->first,
                    "', which the model does not have");
}

// Of an expanded buffer, whose elements share memory, the one that they share.
void put(at::Tensor to, at::Tensor value) {
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (to.stride(d) != 0 || to.size(d) < 2) continue;
    to = to.narrow(d, 0, 1);
    value = value.narrow(d, 0, 1);
  }
  to.copy_(value);
}

}  // namespace

void save_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                     const std::string& path) {
  TORCH_CHECK_VALUE(progress.step >= 0 && progress.rows >= 0, "a run cannot have made ",
                    progress.step, " steps with ", progress.rows, " rows");
  const at::Tensor generator =
      (progress.generator.defined() ? progress.generator : generator_state()).contiguous();
  const std::string fault = fault_of(generator);
  TORCH_CHECK_VALUE(fault.empty(),
                    "progress.generator is no state of LibTorch's generator on the "
                    "CPU: ",
                    fault);
  const internal::OptimizerRecord record = internal::record_of(optimizer, names_of(pipe));
  internal::DraftFolder folder(path, {kModel, kOptimizer, kProgress});
  safetensors::write(folder.file(kModel), state_of(pipe), {{"format", "pt"}});
  safetensors::write(folder.file(kOptimizer), record.tensors, {{"optimizer", record.text.dump()}});
  std::map<std::string, std::string> metadata = {
      {"format", kFormat},
      {"step", std::to_string(progress.step)},
      {"rows", std::to_string(progress.rows)},
      {kModel, fingerprint(folder.file(kModel))},
      {kOptimizer, fingerprint(folder.file(kOptimizer))}};
  metadata[kProgress] = fingerprint(metadata, generator);
  safetensors::write(folder.file(kProgress), {{"generator", generator}}, metadata);
  folder.commit();
}

Progress load_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const std::string& path) {
  TORCH_CHECK_VALUE(!path.empty(), "the path of the checkpoint is empty");
  const std::unique_ptr<Files> files = files_of(path);
  Progress progress;
  progress.step = number(files->progress, "step");
  progress.rows = number(files->progress, "rows");
  progress.generator = files->progress.read("generator");
  const std::string fault = fault_of(progress.generator);
  if (!fault.empty()) damaged(files->progress.path(), fault);
  const Named state = state_of(pipe);
  check_model(state, files->model);
  internal::TensorKinds kinds;
  for (const auto& [name, entry] : files->optimizer.header().tensors) {
    kinds[name] = internal::kind_of(entry.type, entry.shape);
  }
  try {
    const json text = json::parse(metadata(files->optimizer, "optimizer"));
    const internal::ParameterNames names = names_of(pipe);
    internal::check_record(optimizer, names, text, kinds);
    // Before the model, since it may still find something, and changes nothing then.
    internal::restore(optimizer, names, text,
                      [&](const std::string& name) { return files->optimizer.read(name); });
  } catch (const json::exception& error) {
    damaged(files->optimizer.path(), std::string("its metadata: ") + error.what());
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state) put(tensor, files->model.read(name));
  set_generator_state(progress.generator);
  return progress;
}

}  // namespace gpipe
