#include "gpipe/saving/checkpoint_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <charconv>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <unordered_set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gpipe/grad_scaler.h"
#include "gpipe/internal/call/between_runs.h"
#include "gpipe/saving/optimizer_record.h"
#include "gpipe/zero_optimizer.h"
#include "text/shown.h"

namespace gpipe::internal {

// Calls private functions of ZeroOptimizer, which are for the code that saves and restores one.
struct ZeroOptions {
  static void give(const ZeroOptimizer& optimizer) { optimizer.give_options(); }
  static void take(ZeroOptimizer& optimizer) { optimizer.take_options(); }
};

namespace {

using nlohmann::json;

ParameterNames names_of(GPipe& pipe) {
  ParameterNames names;
  for (const auto& parameter : pipe->named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  return names;
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
  const std::string& value_text = metadata_of(file, key);
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

// Copies `value` into `to`. In an expanded buffer several elements share memory, which is written
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
void check_local(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(!parameter.is_meta() || name == names.end(), "the optimizer has ",
                        text::in_quotes(name == names.end() ? "" : name->second),
                        ", which is in another process; make it of GPipe::local_parameters()");
    }
  }
}

// Joins the records of all processes' optimizers, one in each file, into one record. Returns its
// text.
json text_of(const Shards& files) {
  json text;
  for (const auto& file : files.files()) {
    json part = json::parse(metadata_of(*file, "optimizer"));
    if (text.is_null()) {
      text = std::move(part);
      continue;
    }
    TORCH_CHECK_VALUE(merge_record(text, part), gpipe::text::in_quotes(file->path()),
                      " has another type of optimizer, or groups with other options, than ",
                      gpipe::text::in_quotes(files.path()),
                      ": the processes that wrote it did not agree");
  }
  return text;
}

}  // namespace

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

Named state_of(GPipe& pipe) {
  Named state;
  // A tied weight has several names and is taken once.
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& all : {pipe->named_parameters(), pipe->named_buffers()}) {
    for (const auto& item : all) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      state.emplace_back(item.key(), tensor.detach());
    }
  }
  return state;
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

void check_model(const Named& state, const Shards& files, bool alone) {
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

std::vector<std::string> ModelParts::exchange(const std::string& name,
                                              const std::string& value) const {
  if (processes == nullptr) return {value};
  return exchange_long(*processes, name, value, /*is_patient=*/true);
}

Named ModelParts::here(const Named& state) const {
  if (processes == nullptr) return state;
  ParameterNames names = names_of(pipe);
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

void ModelParts::read(const Named& state, const Shards& files) const {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : here(state)) put(tensor, files.read(name));
}

namespace {

struct Saving : ModelParts {
  const std::string call;
  torch::optim::Optimizer& optimizer;
  // Null: a plain optimizer, which has the states of all parameters of this process in each
  // replica.
  ZeroOptimizer* const zero = nullptr;

  // The number of this process's part of the optimizer, and how many parts there are: one for each
  // process of a replica, as for the model, or (`zero`) one for each process of all replicas.
  const int64_t states_rank = zero != nullptr ? world.rank() : rank;
  const int64_t states_size = zero != nullptr ? world.size() : size;

  void save(const Progress& progress, CheckpointSink& sink) const {
    sink.check();
    TORCH_CHECK_VALUE(progress.step >= 0 && progress.rows >= 0, "a run cannot have made ",
                      progress.step, " steps with ", progress.rows, " rows");
    const at::Tensor generator =
        (progress.generator.defined() ? progress.generator : generator_state()).contiguous();
    const std::string fault = fault_of(generator);
    TORCH_CHECK_VALUE(fault.empty(),
                      "progress.generator is not a valid state of LibTorch's generator on the "
                      "CPU: ",
                      fault);
    const ParameterNames names = names_of(pipe);
    if (processes != nullptr) check_local(optimizer, names);
    const OptimizerRecord record = record_of(optimizer, names);
    json own = terms_of(progress, record.text);
    if (!sink.is_in_memory()) {
      check_terms(exchange_json("what is saved", own), own);
    }
    std::vector<std::string> files = {progress_name()};
    for (const auto& [what, parts] : {std::pair("model", size), {"optimizer", states_size}}) {
      for (int64_t part = 0; part < parts; ++part) {
        files.push_back(part_name(what, part, parts));
      }
    }
    if (size > 1) files.push_back(index_name());
    const bool writes_model = sink.is_in_memory() || world.replica() == 0;
    const bool writes_states = zero != nullptr || writes_model;
    sink.begin(files, writes_states);
    own["model"] = own["optimizer"] = "";  // the fingerprints of this process's two files
    if (writes_model) {
      own["model"] =
          sink.write(part_name("model", rank, size), here(state_of(pipe)), {{"format", "pt"}});
    }
    if (writes_states) {
      own["optimizer"] = sink.write(part_name("optimizer", states_rank, states_size),
                                    record.tensors, {{"optimizer", record.text.dump()}});
    }
    const std::string told = sink.told(generator);
    own["told"] = json::binary(std::vector<uint8_t>(told.begin(), told.end()));
    const std::vector<json> all = exchange_json("the files", own);
    if (sink.is_in_memory()) check_terms(all, own);
    std::map<std::string, std::string> metadata = {{"format", format_name()},
                                                   {"step", std::to_string(progress.step)},
                                                   {"rows", std::to_string(progress.rows)}};
    if (!progress.settings.empty()) metadata["settings"] = progress.settings;
    if (progress.grad_scaler) metadata[kGradScaler] = text_of(progress.grad_scaler);
    for (int64_t part = 0; part < size; ++part) {
      metadata[part_name("model", part, size)] = all[static_cast<size_t>(part)].at("model");
    }
    for (int64_t part = 0; part < states_size; ++part) {
      metadata[part_name("optimizer", part, states_size)] =
          all[static_cast<size_t>(part)].at("optimizer");
    }
    std::vector<std::string> of_all;
    for (const json& one : all) {
      const json::binary_t& bytes = one.at("told").get_binary();
      of_all.emplace_back(bytes.begin(), bytes.end());
    }
    sink.end(generator, metadata, of_all);
    (void)exchange(call + ": the end", "");
  }

  Progress load(const CheckpointFiles* files) const {
    Progress found = progress_of(files->progress);
    const Named state = state_of(pipe);
    check_model(state, files->model, processes == nullptr);
    const ParameterNames names = names_of(pipe);
    try {
      json text = text_of(files->optimizer);
      TensorKinds kinds;
      for (const auto& [name, entry] : files->optimizer.tensors()) {
        kinds[name] = kind_of(entry.type, entry.shape);
      }
      if (processes != nullptr) {
        check_local(optimizer, names);
        const int64_t saved = parameters_in(text);
        const int64_t all = parameters_of_all();
        TORCH_CHECK_VALUE(saved == all, gpipe::text::in_quotes(files->optimizer.path()),
                          " is of an optimizer of ", saved,
                          " parameters, and those of the processes have ", all);
        keep_local(names, text, kinds);
      }
      check_record(optimizer, names, text, kinds);
      (void)exchange(call + ": before reading", "");
      // The optimizer is restored before the model. It may still find an error, and nothing must
      // have changed then.
      restore(optimizer, names, text,
              [&](const std::string& name) { return files->optimizer.read(name); });
    } catch (const json::exception& error) {
      throw_damaged(files->optimizer.path(), std::string("its metadata: ") + error.what());
    }
    read(state, files->model);
    set_generator_state(found.generator);
    (void)exchange(call + ": the end", "");
    return found;
  }

  // What must be the same on all processes.
  static json terms_of(const Progress& progress, json text) {
    text.erase("states");
    for (json& group : text["groups"]) group.erase("parameters");
    return {{"terms",
             {{"the progress", std::to_string(progress.step) + " steps, " +
                                   std::to_string(progress.rows) + " rows"},
              {"Progress::settings", progress.settings},
              {"Progress::grad_scaler", text_of(progress.grad_scaler)}}},
            {"groups", text.dump()}};
  }

  // Values of all processes, by rank.
  std::vector<json> exchange_json(const std::string& name, const json& own) const {
    if (processes == nullptr) return {own};
    std::string bytes;
    json::to_cbor(own, bytes);
    std::vector<json> all;
    for (const std::string& other : exchange(call + ": " + name, bytes)) {
      all.push_back(json::from_cbor(other));
    }
    return all;
  }

  // Throws on all processes unless the terms of all are the same, and their optimizers can be saved
  // as one optimizer.
  void check_terms(const std::vector<json>& all, const json& own) const {
    for (const auto& [name, value] : own.at("terms").items()) {
      for (const json& other : all) {
        if (other.at("terms").at(name) == all[0].at("terms").at(name)) continue;
        // All processes come to this. It throws, and its message shows where the values differ.
        processes->agree(call + ": " + name, value);
      }
    }
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const std::string& first = all[0].at("groups").get_ref<const std::string&>();
      const std::string& other = all[rank].at("groups").get_ref<const std::string&>();
      TORCH_CHECK_VALUE(other == first, "the optimizers of ranks 0 and ", rank,
                        " have other types, groups or options, and cannot be saved as one: make as "
                        "many groups with the same options in all of them, also where a group has "
                        "no parameters. Rank 0: ",
                        first, "; rank ", rank, ": ", other);
    }
  }

  // How many parameters the optimizers of all processes have together. Parameters that each replica
  // has count once.
  int64_t parameters_of_all() const {
    int64_t own = 0;
    for (const auto& group : optimizer.param_groups()) {
      own += static_cast<int64_t>(group.params().size());
    }
    const std::vector<std::string> counts =
        exchange(call + ": the number of the optimizer's parameters", std::to_string(own));
    int64_t all = 0;
    for (int64_t part = 0; part < states_size; ++part) {
      all += std::stoll(counts[static_cast<size_t>(part)]);
    }
    return all;
  }

  void keep_local(const ParameterNames& names, json& text, TensorKinds& kinds) const {
    std::unordered_set<std::string> local;
    for (const at::Tensor& parameter :
         zero != nullptr ? zero->owned_parameters() : pipe->local_parameters()) {
      local.insert(names.at(parameter.unsafeGetTensorImpl()));
    }
    text = part_of_record(std::move(text), local);
    for (auto kind = kinds.begin(); kind != kinds.end();) {
      const bool stays = local.count(kind->first.substr(0, kind->first.rfind('/'))) != 0;
      kind = stays ? std::next(kind) : kinds.erase(kind);
    }
  }
};

Saving saving_of(const std::string& call, GPipe& pipe, torch::optim::Optimizer& optimizer) {
  if (auto* const zero = dynamic_cast<ZeroOptimizer*>(&optimizer)) {
    return Saving{{pipe}, call, zero->local(), zero};
  }
  return Saving{{pipe}, call, optimizer, nullptr};
}

}  // namespace

void check_can_be_saved(GPipe& pipe, torch::optim::Optimizer& optimizer) {
  (void)record_of(saving_of("", pipe, optimizer).optimizer, names_of(pipe));
}

void save_run(const std::string& call, GPipe& pipe, torch::optim::Optimizer& optimizer,
              const Progress& progress,
              const std::function<std::unique_ptr<CheckpointSink>(const ModelParts& parts)>& sink) {
  const Saving saving = saving_of(call, pipe, optimizer);
  in_call(saving.processes, [&] {
    const BetweenRuns between(pipe->pipeline());
    if (saving.zero != nullptr) ZeroOptions::give(*saving.zero);
    saving.save(progress, *sink(saving));
    return true;
  });
}

Progress load_run(
    const std::string& call, GPipe& pipe, torch::optim::Optimizer& optimizer,
    const std::function<std::unique_ptr<CheckpointFiles>(const ModelParts& parts)>& open) {
  const Saving saving = saving_of(call, pipe, optimizer);
  return in_call(saving.processes, [&] {
    const BetweenRuns between(pipe->pipeline());
    Progress progress = saving.load(open(saving).get());
    if (saving.zero != nullptr) ZeroOptions::take(*saving.zero);
    return progress;
  });
}

}  // namespace gpipe::internal
