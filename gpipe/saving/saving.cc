#include "gpipe/saving/saving.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gpipe/grad_scaler.h"
#include "gpipe/internal/call/between_runs.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/saving/checkpoint_files.h"
#include "gpipe/saving/draft_folder.h"
#include "gpipe/saving/optimizer_record.h"
#include "safetensors/safetensors.h"
#include "text/shown.h"

namespace gpipe {
namespace {

using internal::Processes;
using internal::throw_damaged;
using nlohmann::json;

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

// The fault of a generator's state; empty if the state is valid.
std::string fault_of(const at::Tensor& state) {
  try {
    at::detail::createCPUGenerator().set_state(state);
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

int64_t number(const safetensors::File& file, const std::string& key) {
  const std::string& value_text = internal::metadata_of(file, key);
  int64_t value = 0;
  const char* end = value_text.data() + value_text.size();
  const auto [parsed_end, error] = std::from_chars(value_text.data(), end, value);
  if (error != std::errc() || parsed_end != end || value < 0) {
    throw_damaged(file.path(), text::in_quotes(key) + " is " + text::quoted(value_text));
  }
  return value;
}

// The key of Progress::grad_scaler in the metadata. Its value is a text like "65536 12".
constexpr const char* kGradScaler = "grad_scaler";
std::string text_of(const std::optional<GradScalerState>& state) {
  return state ? absl::StrFormat("%.17g %d", state->scale, state->growth_steps) : "";
}

Progress progress_of(const safetensors::File& file) {
  Progress found;
  found.step = number(file, "step");
  found.rows = number(file, "rows");
  found.generator = file.read("generator");
  const std::string fault = fault_of(found.generator);
  if (!fault.empty()) throw_damaged(file.path(), fault);
  const auto& all = file.header().metadata;
  const auto settings = all.find("settings");
  if (settings != all.end()) found.settings = settings->second;
  const auto scaler = all.find(kGradScaler);
  if (scaler != all.end()) {
    const std::vector<std::string> parts = absl::StrSplit(scaler->second, ' ');
    GradScalerState state;
    if (parts.size() != 2 || !absl::SimpleAtod(parts[0], &state.scale) ||
        !absl::SimpleAtoi(parts[1], &state.growth_steps)) {
      throw_damaged(file.path(),
                    text::in_quotes(kGradScaler) + " is " + text::quoted(scaler->second));
    }
    found.grad_scaler = state;
  }
  return found;
}

// Checks that the files have the model's tensors, with their shapes and types, including the
// tensors of layers in other processes. `alone`: there are no other processes.
void check_model(const Named& state, const internal::Shards& files, bool alone) {
  std::map<std::string, safetensors::Entry> left = files.tensors();
  for (const auto& [name, tensor] : state) {
    const auto entry = left.find(name);
    TORCH_CHECK_VALUE(entry != left.end(), text::in_quotes(files.path()), " has no ",
                      text::in_quotes(name), "; is it of another model?");
    TORCH_CHECK_VALUE(at::IntArrayRef(entry->second.shape) == tensor.sizes() &&
                          entry->second.type == safetensors::type_name(tensor.scalar_type()),
                      text::in_quotes(name), " is ", entry->second.type, " ",
                      at::IntArrayRef(entry->second.shape), " in ", text::in_quotes(files.path()),
                      ", and ", safetensors::type_name(tensor.scalar_type()), " ", tensor.sizes(),
                      " in the model");
    TORCH_CHECK_VALUE(!alone || !tensor.is_meta(), text::in_quotes(name),
                      " is on meta and can have no values");
    left.erase(entry);
  }
  TORCH_CHECK_VALUE(left.empty(), text::in_quotes(files.path()), " has ",
                    text::in_quotes(left.begin()->first), ", which the model does not have");
}

// Copies `value` into `to`. In an expanded buffer several elements share memory; each is written
// once.
void put(at::Tensor to, at::Tensor value) {
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (to.stride(d) != 0 || to.size(d) < 2) continue;
    to = to.narrow(d, 0, 1);
    value = value.narrow(d, 0, 1);
  }
  to.copy_(value);
}

// Checks that the optimizer has only parameters of this process.
void check_local(const torch::optim::Optimizer& optimizer, const internal::ParameterNames& names) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(!parameter.is_meta() || name == names.end(), "the optimizer has ",
                        text::in_quotes(name == names.end() ? "" : name->second),
                        ", which is in another process; make it of GPipe::local_parameters()");
    }
  }
}

// The text of one record that joins the records of all processes' optimizers.
json text_of(const internal::Shards& files) {
  json text;
  for (const auto& file : files.files()) {
    json part = json::parse(internal::metadata_of(*file, "optimizer"));
    if (text.is_null()) {
      text = std::move(part);
      continue;
    }
    TORCH_CHECK_VALUE(internal::merge_record(text, part), gpipe::text::in_quotes(file->path()),
                      " has another type of optimizer, or groups with other options, than ",
                      gpipe::text::in_quotes(files.path()),
                      ": the processes that wrote it did not agree");
  }
  return text;
}

// The absolute path, for processes with other current folders.
std::string absolute(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  if (!real) throw_damaged(path, std::strerror(errno));
  return real.get();
}

// Refuses a path with a NUL byte: the system would take only the part before it.
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

// Writes which file has which tensor, for other readers of the parts of a model.
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

// The parts of a model over processes.
struct ModelParts {
  GPipe& pipe;
  Processes* const processes = pipe->world().processes().get();

  // The parts belong to the stages of one replica: all replicas have the same, and the first one
  // writes.
  const World& world = pipe->world();
  const int64_t rank = world.process();
  const int64_t size = world.processes_each();

  // Waits without a limit for the values of all processes, as writing and reading may take long.
  std::vector<std::string> exchange(const std::string& name, const std::string& value) const {
    if (processes == nullptr) return {value};
    return internal::exchange_long(*processes, name, value, /*is_patient=*/true);
  }

  // The tensors of the layers of this process; a tied tensor only if this process owns it.
  Named here(const Named& state) const {
    if (processes == nullptr) return state;
    internal::ParameterNames names = names_of(pipe);
    for (const at::Tensor& parameter : pipe->local_parameters()) {
      names.erase(parameter.unsafeGetTensorImpl());
    }
    std::unordered_set<std::string> of_others;
    for (const auto& [parameter, name] : names) of_others.insert(name);
    Named result;
    for (const auto& [name, tensor] : state) {
      if (!tensor.is_meta() && of_others.count(name) == 0) result.emplace_back(name, tensor);
    }
    return result;
  }

  // Throws unless this is a complete checkpoint, the same for all processes.
  std::unique_ptr<internal::CheckpointFiles> open(const std::string& call,
                                                  const std::string& path) const {
    check_path(path);
    TORCH_CHECK_VALUE(!path.empty(), "the path of the checkpoint is empty");
    auto files = internal::open_checkpoint(path, rank, size);
    if (processes != nullptr) {
      processes->agree(call + ": the checkpoint",
                       internal::metadata_of(files->progress, internal::progress_name()));
    }
    return files;
  }

  void read(const Named& state, const internal::Shards& files) const {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : here(state)) put(tensor, files.read(name));
  }

  Progress load_weights(const std::string& path) const {
    const std::unique_ptr<internal::CheckpointFiles> files = open("load_weights", path);
    Progress found = progress_of(files->progress);
    const Named state = state_of(pipe);
    check_model(state, files->model, processes == nullptr);
    (void)exchange("load_weights: before reading", "");
    read(state, files->model);
    (void)exchange("load_weights: the end", "");
    return found;
  }
};

struct Saving : ModelParts {
  torch::optim::Optimizer& optimizer;
  // Null: each replica's optimizer has the states of all parameters that are here.
  const ZeroOptimizer* const zero = nullptr;

  const bool writes_model = world.replica() == 0;
  // The optimizer has a part for each stage, too, unless each replica has other states (`zero`).
  const int64_t states_rank = zero != nullptr ? world.rank() : rank;
  const int64_t states_size = zero != nullptr ? world.size() : size;
  const bool writes_states = zero != nullptr || writes_model;

  void save(const Progress& progress, const std::string& path) const {
    check_path(path);
    if (processes != nullptr) processes->agree("save_checkpoint: the path", path);
    TORCH_CHECK_VALUE(progress.step >= 0 && progress.rows >= 0, "a run cannot have made ",
                      progress.step, " steps with ", progress.rows, " rows");
    if (processes != nullptr) {
      processes->agree(
          "save_checkpoint: the progress",
          std::to_string(progress.step) + " steps, " + std::to_string(progress.rows) + " rows");
      processes->agree("save_checkpoint: Progress::settings", progress.settings);
      processes->agree("save_checkpoint: Progress::grad_scaler", text_of(progress.grad_scaler));
    }
    const at::Tensor generator =
        (progress.generator.defined() ? progress.generator : generator_state()).contiguous();
    const std::string fault = fault_of(generator);
    TORCH_CHECK_VALUE(fault.empty(),
                      "progress.generator is not a valid state of LibTorch's generator on the "
                      "CPU: ",
                      fault);
    const internal::ParameterNames names = names_of(pipe);
    if (processes != nullptr) check_local(optimizer, names);
    const internal::OptimizerRecord record = internal::record_of(optimizer, names);
    check_groups(record.text);
    std::vector<std::string> files = {internal::progress_name()};
    for (const auto& [what, parts] : {std::pair("model", size), {"optimizer", states_size}}) {
      for (int64_t part = 0; part < parts; ++part) {
        files.push_back(internal::part_name(what, part, parts));
      }
    }
    if (size > 1) files.push_back(internal::index_name());
    std::optional<internal::DraftFolder> folder;
    if (world.rank() == 0) folder.emplace(path, files, internal::is_checkpoint_file);
    const std::string draft =
        exchange("save_checkpoint: the folder", folder ? absolute(folder->path()) : "").front();
    const std::string model = internal::part_name("model", rank, size);
    const std::string states = internal::part_name("optimizer", states_rank, states_size);
    if (writes_states && !folder && !is_folder(draft)) {
      throw_damaged(
          draft,
          "process 0 has made this folder, but this process does not see it: the processes must "
          "see one file system");
    }
    if (writes_model) {
      safetensors::write(draft + "/" + model, here(state_of(pipe)), {{"format", "pt"}});
    }
    if (writes_states) {
      safetensors::write(draft + "/" + states, record.tensors, {{"optimizer", record.text.dump()}});
    }
    const std::vector<std::string> models =
        exchange("save_checkpoint: the fingerprints of the model's files",
                 writes_model ? internal::fingerprint_of_file(draft + "/" + model) : "");
    const std::vector<std::string> optimizers =
        exchange("save_checkpoint: the fingerprints of the optimizers' files",
                 writes_states ? internal::fingerprint_of_file(draft + "/" + states) : "");
    if (folder) {
      std::map<std::string, std::string> metadata = {{"format", internal::format_name()},
                                                     {"step", std::to_string(progress.step)},
                                                     {"rows", std::to_string(progress.rows)}};
      if (!progress.settings.empty()) metadata["settings"] = progress.settings;
      if (progress.grad_scaler) metadata[kGradScaler] = text_of(progress.grad_scaler);
      for (int64_t part = 0; part < size; ++part) {
        metadata[internal::part_name("model", part, size)] = models[static_cast<size_t>(part)];
      }
      for (int64_t part = 0; part < states_size; ++part) {
        metadata[internal::part_name("optimizer", part, states_size)] =
            optimizers[static_cast<size_t>(part)];
      }
      metadata[internal::progress_name()] = internal::fingerprint_of_progress(metadata, generator);
      if (size > 1) write_index(*folder, size);
      safetensors::write(folder->file(internal::progress_name()), {{"generator", generator}},
                         metadata);
      folder->commit();
    }
    (void)exchange("save_checkpoint: the end", "");
  }

  Progress load(const std::string& path) const {
    const std::unique_ptr<internal::CheckpointFiles> files = open("load_checkpoint", path);
    Progress found = progress_of(files->progress);
    const Named state = state_of(pipe);
    check_model(state, files->model, processes == nullptr);
    const internal::ParameterNames names = names_of(pipe);
    try {
      json text = text_of(files->optimizer);
      internal::TensorKinds kinds;
      for (const auto& [name, entry] : files->optimizer.tensors()) {
        kinds[name] = internal::kind_of(entry.type, entry.shape);
      }
      if (processes != nullptr) {
        check_local(optimizer, names);
        const int64_t saved = internal::parameters_in(text);
        const int64_t all = parameters_of_all();
        TORCH_CHECK_VALUE(saved == all, gpipe::text::in_quotes(files->optimizer.path()),
                          " is of an optimizer of ", saved,
                          " parameters, and those of the processes have ", all);
        keep_local(names, text, kinds);
      }
      internal::check_record(optimizer, names, text, kinds);
      (void)exchange("load_checkpoint: before reading", "");
      // The optimizer comes before the model: it may still find an error, and changes nothing then.
      internal::restore(optimizer, names, text,
                        [&](const std::string& name) { return files->optimizer.read(name); });
    } catch (const json::exception& error) {
      throw_damaged(files->optimizer.path(), std::string("its metadata: ") + error.what());
    }
    read(state, files->model);
    set_generator_state(found.generator);
    (void)exchange("load_checkpoint: the end", "");
    return found;
  }

  // Checks that the processes' optimizers can be saved as one optimizer.
  void check_groups(json text) const {
    text.erase("states");
    for (json& group : text["groups"]) group.erase("parameters");
    const std::vector<std::string> all =
        exchange("save_checkpoint: the optimizers' groups", text.dump());
    for (size_t rank = 1; rank < all.size(); ++rank) {
      TORCH_CHECK_VALUE(all[rank] == all[0], "the optimizers of ranks 0 and ", rank,
                        " have other types, groups or options, and cannot be saved as one: make as "
                        "many groups with the same options in all of them, also where a group has "
                        "no parameters. Rank 0: ",
                        all[0], "; rank ", rank, ": ", all[rank]);
    }
  }

  // The sum of the numbers of parameters over all optimizers that have different parameters.
  int64_t parameters_of_all() const {
    int64_t own = 0;
    for (const auto& group : optimizer.param_groups()) {
      own += static_cast<int64_t>(group.params().size());
    }
    const std::vector<std::string> counts =
        exchange("load_checkpoint: the number of the optimizer's parameters", std::to_string(own));
    int64_t all = 0;
    for (int64_t part = 0; part < states_size; ++part) {
      all += std::stoll(counts[static_cast<size_t>(part)]);
    }
    return all;
  }

  void keep_local(const internal::ParameterNames& names, json& text,
                  internal::TensorKinds& kinds) const {
    std::unordered_set<std::string> local;
    for (const at::Tensor& parameter :
         zero != nullptr ? zero->owned_parameters() : pipe->local_parameters()) {
      local.insert(names.at(parameter.unsafeGetTensorImpl()));
    }
    text = internal::part_of_record(std::move(text), local);
    for (auto kind = kinds.begin(); kind != kinds.end();) {
      const bool stays = local.count(kind->first.substr(0, kind->first.rfind('/'))) != 0;
      kind = stays ? std::next(kind) : kinds.erase(kind);
    }
  }
};

// `begin`: called before the optimizer is read.
void save(const Saving& saving, const Progress& progress, const std::string& path,
          const std::function<void()>& begin = nullptr) {
  if (saving.world.replicas() > 1) {
    try {
      (void)saving.pipe->parameter_hash();
    } catch (const c10::Error&) {
      internal::rethrow_with(std::current_exception(),
                             "save_checkpoint compares the replicas by their parameter_hash before "
                             "it writes anything");
    }
  }
  internal::in_call(saving.processes, [&] {
    const internal::BetweenRuns between(saving.pipe->pipeline());
    if (begin != nullptr) begin();
    saving.save(progress, path);
    return true;
  });
}

// `end`: called when the optimizer is read.
Progress load(const Saving& saving, const std::string& path,
              const std::function<void()>& end = nullptr) {
  return internal::in_call(saving.processes, [&] {
    const internal::BetweenRuns between(saving.pipe->pipeline());
    Progress progress = saving.load(path);
    if (end != nullptr) end();
    return progress;
  });
}

}  // namespace

void save_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                     const std::string& path) {
  if (auto* const zero = dynamic_cast<ZeroOptimizer*>(&optimizer)) {
    return save_checkpoint(pipe, *zero, progress, path);
  }
  save(Saving{{pipe}, optimizer}, progress, path);
}

void save_checkpoint(GPipe& pipe, ZeroOptimizer& optimizer, const Progress& progress,
                     const std::string& path) {
  save(Saving{{pipe}, *optimizer.optimizer_, &optimizer}, progress, path,
       [&] { optimizer.give_options(); });
}

bool check_checkpoint_path(const std::string& path) {
  check_path(path);
  return internal::check_place(path, internal::is_checkpoint_file);
}

bool has_checkpoint(const std::string& path) {
  check_path(path);
  std::error_code error;
  return std::filesystem::is_directory(path, error) && !std::filesystem::is_empty(path, error);
}

Progress load_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const std::string& path) {
  if (auto* const zero = dynamic_cast<ZeroOptimizer*>(&optimizer)) {
    return load_checkpoint(pipe, *zero, path);
  }
  return load(Saving{{pipe}, optimizer}, path);
}

Progress load_checkpoint(GPipe& pipe, ZeroOptimizer& optimizer, const std::string& path) {
  return load(Saving{{pipe}, *optimizer.optimizer_, &optimizer}, path,
              [&] { optimizer.take_options(); });
}

Progress load_weights(GPipe& pipe, const std::string& path) {
  const ModelParts parts{pipe};
  return internal::in_call(parts.processes, [&] {
    const internal::BetweenRuns between(pipe->pipeline());
    return parts.load_weights(path);
  });
}

Progress read_progress(const std::string& path) {
  check_path(path);
  TORCH_CHECK_VALUE(!path.empty(), "the path of the checkpoint is empty");
  const safetensors::File progress(path + "/" + internal::progress_name());
  internal::check_progress(progress);
  return progress_of(progress);
}

}  // namespace gpipe
