#include "experiments/rows/training_state.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <zlib.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "command/files.h"

namespace gpipe::experiments {
namespace {

using TensorMap = c10::Dict<std::string, at::Tensor>;
using TextMap = c10::Dict<std::string, std::string>;

constexpr int64_t kFormat = 1;

at::Tensor to_store(const at::Tensor& tensor) {
  // The tensor is cloned, because a view into a larger tensor would store all of that tensor.
  return tensor.detach().to(at::kCPU).clone();
}

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : model.named_buffers()) tensors.emplace(item.key(), item.value());
  return tensors;
}

std::string differences(const TextMap& saved, const std::map<std::string, std::string>& now) {
  std::string text;
  for (const auto& [key, value] : now) {
    const std::string before = saved.contains(key) ? saved.at(key) : "nothing";
    if (before != value) text += "\n  " + key + ": saved with " + before + ", now " + value;
  }
  for (const auto& item : saved) {
    if (now.count(item.key()) == 0) {
      text += "\n  " + item.key() + ": saved with " + item.value() + ", now nothing";
    }
  }
  return text;
}

// The format of a file: this text, the checksum of the rest in eight hexadecimal digits, a newline,
// and the rest.
constexpr char kMagic[] = "gpipe training state ";
constexpr std::size_t kHeader = sizeof kMagic - 1 + 8 + 1;

std::string header_of(const char* bytes, std::size_t size) {
  const uLong checksum =
      crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(bytes), size);
  return absl::StrFormat("%s%08x\n", kMagic, checksum);
}

std::string read_bytes(const std::string& path) {
  TORCH_CHECK_VALUE(std::filesystem::exists(path), "there is no checkpoint ", path,
                    ": start without --resume, or give the folder of an earlier run");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file.is_open() && !std::filesystem::is_directory(path), path,
                    " cannot be read: ", file.is_open() ? "it is a folder" : std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

c10::impl::GenericDict read(const std::string& path) {
  const std::string bytes = read_bytes(path);
  const char* content = bytes.data() + kHeader;
  // Without the checksum, damaged tensors would load without an error.
  TORCH_CHECK_VALUE(bytes.size() > kHeader &&
                        bytes.substr(0, kHeader) == header_of(content, bytes.size() - kHeader),
                    path, " is not a checkpoint of this program, or is damaged");
  try {
    c10::impl::GenericDict root =
        torch::jit::pickle_load(std::vector<char>(content, bytes.data() + bytes.size()))
            .toGenericDict();
    TORCH_CHECK(root.at("format").toInt() == kFormat, "unknown format");
    return root;
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, path, " is not a checkpoint of this program: ",
                      std::string(error.what()).substr(0, 200));
  }
}

// Checks the saved tensors and returns them by name. Nothing is written to the model here, so that
// an incomplete file changes nothing.
std::map<std::string, at::Tensor> checked_tensors(const std::string& path, const char* what,
                                                  const c10::impl::GenericDict& saved,
                                                  const std::map<std::string, at::Tensor>& wanted,
                                                  bool all) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : saved) {
    const std::string name = item.key().toStringRef();
    const auto found = wanted.find(name);
    TORCH_CHECK_VALUE(found != wanted.end(), path, " holds ", what, " ", name,
                      ", which the model does not have");
    const at::Tensor& tensor = item.value().toTensor();
    TORCH_CHECK_VALUE(tensor.sizes() == found->second.sizes(), path, ": ", what, " ", name,
                      " has shape ", tensor.sizes(), ", the model's ", found->second.sizes());
    tensors.emplace(name, tensor);
  }
  if (!all) return tensors;
  for (const auto& [name, tensor] : wanted) {
    TORCH_CHECK_VALUE(tensors.count(name) > 0, path, " lacks ", what, " ", name);
  }
  return tensors;
}

TrainingState state_of(const std::string& path, const c10::impl::GenericDict& root,
                       const std::map<std::string, std::string>& config) {
  TextMap saved_config;
  for (const auto& item : root.at("config").toGenericDict()) {
    saved_config.insert(item.key().toStringRef(), item.value().toStringRef());
  }
  const std::string different = differences(saved_config, config);
  TORCH_CHECK_VALUE(
      different.empty(), path, " belongs to another run:", different,
      "\nResume with the same settings, or begin anew with --overwrite, or in another folder.");
  return {root.at("epochs").toInt(), config, root.at("history").toStringRef()};
}

}  // namespace

void save_training_state(const std::string& path, const torch::nn::Module& model,
                         torch::optim::SGD& optimizer, const TrainingState& state) {
  TensorMap tensors;
  for (const auto& [name, tensor] : tensors_of(model)) tensors.insert(name, to_store(tensor));
  TensorMap momentum;
  for (const auto& item : model.named_parameters()) {
    const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const auto& buffer =
        static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
    if (buffer.defined()) momentum.insert(item.key(), to_store(buffer));
  }
  TextMap config;
  for (const auto& [key, value] : state.config) config.insert(key, value);

  c10::impl::GenericDict root(c10::StringType::get(), c10::AnyType::get());
  root.insert("format", kFormat);
  root.insert("epochs", state.epochs);
  root.insert("config", config);
  root.insert("history", state.history);
  root.insert("tensors", tensors);
  root.insert("momentum", momentum);
  const std::vector<char> bytes = torch::jit::pickle_save(root);
  command::write_file_atomically(
      path, header_of(bytes.data(), bytes.size()) + std::string(bytes.begin(), bytes.end()));
}

TrainingState read_training_state(const std::string& path,
                                  const std::map<std::string, std::string>& config) {
  return state_of(path, read(path), config);
}

TrainingState load_training_state(const std::string& path, torch::nn::Module& model,
                                  torch::optim::SGD& optimizer,
                                  const std::map<std::string, std::string>& config) {
  const c10::impl::GenericDict root = read(path);
  TrainingState state = state_of(path, root, config);
  const auto model_tensors = tensors_of(model);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : model.named_parameters()) parameters.emplace(item.key(), item.value());
  const auto tensors =
      checked_tensors(path, "the tensor", root.at("tensors").toGenericDict(), model_tensors, true);
  const auto momentum = checked_tensors(path, "the momentum of",
                                        root.at("momentum").toGenericDict(), parameters, false);

  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& destination = model_tensors.at(name);
    destination.copy_(tensor);
  }
  optimizer.state().clear();
  for (const auto& [name, tensor] : momentum) {
    const at::Tensor& parameter = parameters.at(name);
    auto buffer = std::make_unique<torch::optim::SGDParamState>();
    buffer->momentum_buffer(tensor.to(parameter.device()));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(buffer);
  }
  return state;
}

}  // namespace gpipe::experiments
