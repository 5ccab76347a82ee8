#include "gpipe/saving/saving.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
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
std::string fingerprint(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) damaged(path, std::strerror(errno));
  std::vector<unsigned char> part(size_t{1} << 20);
  uLong crc = crc32_z(0, nullptr, 0);
  uint64_t bytes = 0;
  while (const size_t got = std::fread(part.data(), 1, part.size(), file.get())) {
    crc = crc32_z(crc, part.data(), got);
    bytes += got;
  }
  if (std::ferror(file.get()) != 0) damaged(path, std::strerror(errno));
  char text[64];
  std::snprintf(text, sizeof text, "%llu bytes, CRC-32 %08lx",
                static_cast<unsigned long long>(bytes), crc);
  return text;
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Parameters and buffers, each once, under its first name.
Named state_of(GPipe& pipe) {
  Named state;
  for (const auto& parameter : pipe->named_parameters()) {
    state.emplace_back(parameter.key(), parameter.value().detach());
  }
  for (const auto& buffer : pipe->named_buffers()) {
    if (buffer.value().defined()) state.emplace_back(buffer.key(), buffer.value().detach());
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
    left.erase(entry);
  }
  TORCH_CHECK_VALUE(left.empty(), "'", file.path(), "' has '", left.begin()->first,
                    "', which the model does not have");
}

}  // namespace

void save_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                     const std::string& path) {
  TORCH_CHECK_VALUE(progress.step >= 0 && progress.rows >= 0, "a run cannot have made ",
                    progress.step, " steps with ", progress.rows, " rows");
  const at::Tensor generator =
      progress.generator.defined() ? progress.generator : generator_state();
  internal::DraftFolder folder(path, {kModel, kOptimizer, kProgress});
  safetensors::write(folder.file(kModel), state_of(pipe), {{"format", "pt"}});
  {
    const internal::OptimizerRecord record = internal::record_of(optimizer, names_of(pipe));
    safetensors::write(folder.file(kOptimizer), record.tensors,
                       {{"optimizer", record.text.dump()}});
  }
  safetensors::write(folder.file(kProgress), {{"generator", generator}},
                     {{"format", kFormat},
                      {"step", std::to_string(progress.step)},
                      {"rows", std::to_string(progress.rows)},
                      {kModel, fingerprint(folder.file(kModel))},
                      {kOptimizer, fingerprint(folder.file(kOptimizer))}});
  folder.commit();
}

Progress load_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const std::string& path) {
  const safetensors::File progress_file(path + "/" + kProgress);
  if (metadata(progress_file, "format") != kFormat) {
    damaged(path, "it is '" + metadata(progress_file, "format") + "', this program reads '" +
                      kFormat + "'");
  }
  for (const char* name : {kModel, kOptimizer}) {
    const std::string file = path + "/" + name;
    const std::string found = fingerprint(file);
    if (found != metadata(progress_file, name)) {
      damaged(file, "it has " + found + ", and had " + metadata(progress_file, name) +
                        " when it was saved");
    }
  }
  const safetensors::File model_file(path + "/" + kModel);
  const safetensors::File optimizer_file(path + "/" + kOptimizer);

  Progress progress;
  progress.step = number(progress_file, "step");
  progress.rows = number(progress_file, "rows");
  progress.generator = progress_file.read("generator");
  const Named state = state_of(pipe);
  check_model(state, model_file);
  const internal::ParameterNames names = names_of(pipe);
  json text;
  std::vector<std::string> tensors;
  for (const auto& [name, entry] : optimizer_file.header().tensors) tensors.push_back(name);
  try {
    text = json::parse(metadata(optimizer_file, "optimizer"));
    internal::check_record(optimizer, names, text, tensors);
  } catch (const json::exception& error) {
    damaged(optimizer_file.path(), std::string("its metadata: ") + error.what());
  }

  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : state) tensor.copy_(model_file.read(name));
  }
  internal::restore(optimizer, names, text, tensors,
                    [&](const std::string& name) { return optimizer_file.read(name); });
  set_generator_state(progress.generator);
  return progress;
}

}  // namespace gpipe
