#include "models/hugging_face.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "command/files.h"
#include "safetensors/safetensors.h"

namespace gpipe::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kGpt2Prefix = "transformer.";

// One of a file's tensors as a part of a parameter.
struct Part {
  std::string name;   // in the file
  at::Tensor values;  // a view of the parameter, of the file's shape
};

// The model's parameters by the names that it gives them.
class Parameters {
 public:
  explicit Parameters(const torch::nn::Module& model) {
    for (const auto& parameter : model.named_parameters()) {
      left_.emplace(parameter.key(), parameter.value());
    }
  }
  // Of the shape that the options ask for.
  at::Tensor take(const std::string& name, at::IntArrayRef shape) {
    const auto found = left_.find(name);
    TORCH_CHECK_VALUE(found != left_.end(), "the module has no parameter '", name,
                      "'; it must be what transformer() makes of the options, or a pipeline of it");
    const at::Tensor parameter = found->second;
    TORCH_CHECK_VALUE(parameter.sizes() == shape, "the module's parameter '", name, "' is ",
                      parameter.sizes(), ", that of the options ", shape);
    left_.erase(found);
    return parameter.detach();
  }
  void check_all_taken() const {
    TORCH_CHECK_VALUE(left_.empty(), "the module has the parameter '", left_.begin()->first,
                      "', a transformer of the options has none such");
  }

 private:
  std::map<std::string, at::Tensor> left_;
};

// GPT-2's file has each matrix with its inputs first.
void add_gpt2(const TransformerOptions& options, Parameters& parameters, std::vector<Part>* parts) {
  const int64_t e = options.hidden_size(), f = options.mlp_size();
  const auto add = [&](const std::string& theirs, const std::string& ours, at::IntArrayRef shape,
                       bool transposed = false) {
    const at::Tensor values = parameters.take(ours, shape);
    parts->push_back({kGpt2Prefix + theirs, transposed ? values.t() : values});
  };
  const auto add_norm = [&](const std::string& theirs, const std::string& ours) {
    add(theirs + ".weight", ours + ".weight", {e});
    add(theirs + ".bias", ours + ".bias", {e});
  };
  const auto add_linear = [&](const std::string& theirs, const std::string& ours, int64_t in,
                              int64_t out) {
    add(theirs + ".weight", ours + ".weight", {out, in}, true);
    add(theirs + ".bias", ours + ".bias", {out});
  };
  add("wte.weight", "embedding.tokens.weight", {options.vocab_size(), e});
  add("wpe.weight", "embedding.positions.weight", {options.max_positions(), e});
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    const std::string theirs = "h." + std::to_string(block) + ".";
    const std::string ours = "block" + std::to_string(block);
    add_norm(theirs + "ln_1", ours + "_attention.norm");
    add_linear(theirs + "attn.c_attn", ours + "_attention.qkv", e, 3 * e);
    add_linear(theirs + "attn.c_proj", ours + "_attention.output", e, e);
    add_norm(theirs + "ln_2", ours + "_mlp.norm");
    add_linear(theirs + "mlp.c_fc", ours + "_mlp.up", e, f);
    add_linear(theirs + "mlp.c_proj", ours + "_mlp.down", f, e);
  }
  add_norm("ln_f", "norm");
}

// Llama's has queries, keys and values apart.
void add_llama(const TransformerOptions& options, Parameters& parameters,
               std::vector<Part>* parts) {
  const int64_t e = options.hidden_size(), f = options.mlp_size();
  const int64_t queries = options.num_heads() * options.size_of_head(),
                keys = options.kv_heads() * options.size_of_head();
  const auto add = [&](const std::string& theirs, const std::string& ours, at::IntArrayRef shape) {
    parts->push_back({"model." + theirs, parameters.take(ours, shape)});
  };
  add("embed_tokens.weight", "embedding.tokens.weight", {options.vocab_size(), e});
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    const std::string theirs = "layers." + std::to_string(block) + ".";
    const std::string ours = "block" + std::to_string(block);
    const at::Tensor qkv = parameters.take(ours + "_attention.qkv.weight", {queries + 2 * keys, e});
    const std::string attention = "model." + theirs + "self_attn.";
    parts->push_back({attention + "q_proj.weight", qkv.slice(0, 0, queries)});
    parts->push_back({attention + "k_proj.weight", qkv.slice(0, queries, queries + keys)});
    parts->push_back({attention + "v_proj.weight", qkv.slice(0, queries + keys)});
    add(theirs + "self_attn.o_proj.weight", ours + "_attention.output.weight", {e, queries});
    add(theirs + "mlp.gate_proj.weight", ours + "_mlp.gate.weight", {f, e});
    add(theirs + "mlp.up_proj.weight", ours + "_mlp.up.weight", {f, e});
    add(theirs + "mlp.down_proj.weight", ours + "_mlp.down.weight", {e, f});
    add(theirs + "input_layernorm.weight", ours + "_attention.norm.weight", {e});
    add(theirs + "post_attention_layernorm.weight", ours + "_mlp.norm.weight", {e});
  }
  add("norm.weight", "norm.weight", {e});
}

std::vector<Part> parts_of(const TransformerOptions& options, const torch::nn::Module& model) {
  check(options);
  Parameters parameters(model);
  std::vector<Part> parts;
  options.kind() == TransformerKind::kGPT2 ? add_gpt2(options, parameters, &parts)
                                           : add_llama(options, parameters, &parts);
  if (!options.tied()) {
    parts.push_back({"lm_head.weight", parameters.take("head.weight", {options.vocab_size(),
                                                                       options.hidden_size()})});
  }
  parameters.check_all_taken();
  return parts;
}

// --- reading

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file.is_open()) text << file.rdbuf();
  // An empty file sets a flag of `text`, a folder that of a read which failed.
  if (!file.is_open() || file.bad() || fs::is_directory(path)) {
    throw std::runtime_error("cannot read " + path.string());
  }
  return text.str();
}

// The folder's tensors, from one file or several.
class Weights {
 public:
  explicit Weights(const fs::path& folder) {
    if (fs::exists(folder / kFile)) {
      open(folder / kFile);
      return;
    }
    if (!fs::exists(folder / kIndex)) {
      throw std::runtime_error("there is neither " + std::string(kFile) + " nor " + kIndex +
                               " in " + folder.string());
    }
    read_index(folder);
  }

  // By the name in the file.
  const std::map<std::string, const safetensors::File*>& tensors() const { return tensors_; }
  at::Tensor read(const std::string& name) const { return tensors_.at(name)->read(name); }
  const std::vector<int64_t>& shape(const std::string& name) const {
    return tensors_.at(name)->header().tensors.at(name).shape;
  }
  const std::string& type(const std::string& name) const {
    return tensors_.at(name)->header().tensors.at(name).type;
  }

 private:
  void open(const fs::path& path) {
    files_.push_back(std::make_unique<safetensors::File>(path.string()));
    for (const auto& tensor : files_.back()->header().tensors) {
      if (tensors_.emplace(tensor.first, files_.back().get()).second) continue;
      throw std::runtime_error("tensor '" + tensor.first + "' is in " + path.string() + " and in " +
                               tensors_.at(tensor.first)->path());
    }
  }

  void read_index(const fs::path& folder) {
    const std::string path = (folder / kIndex).string();
    const Json json = Json::parse(text_of(path), nullptr, /*allow_exceptions=*/false);
    const Json map = json.is_object() && json.contains("weight_map") ? json["weight_map"] : Json();
    if (!map.is_object()) throw std::runtime_error(path + " has no weight_map");
    std::map<std::string, std::string> file_of;  // of each tensor
    for (const auto& [name, value] : map.items()) {
      const std::string file = value.is_string() ? value.get<std::string>() : "";
      // Nothing outside of the folder.
      if (file.empty() || fs::path(file).filename() != file || file == "." || file == "..") {
        throw std::runtime_error(path + ": the file of tensor '" + name +
                                 "' must be a name in the folder");
      }
      file_of.emplace(name, file);
    }
    std::map<std::string, bool> opened;
    for (const auto& [name, file] : file_of) {
      if (!std::exchange(opened[file], true)) open(folder / file);
    }
    for (const auto& [name, file] : file_of) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || fs::path(found->second->path()).filename() != file) {
        throw std::runtime_error(path + ": tensor '" + name + "' is not in " + file);
      }
    }
  }

  std::vector<std::unique_ptr<safetensors::File>> files_;
  std::map<std::string, const safetensors::File*> tensors_;
};

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// What older versions saved although it is computed: triangular masks and rotary frequencies.
bool is_computed(const TransformerOptions& options, const std::string& name) {
  if (options.kind() == TransformerKind::kLlama) return ends_with(name, ".rotary_emb.inv_freq");
  return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

// "'a', 'b' and 7 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", '" : "'") + names[i] + "'";
  }
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more"
                               : text;
}

// Whole numbers are quantized weights, which mean other values than they have.
void check_type(const Weights& weights, const std::string& name) {
  const std::string& type = weights.type(name);
  if (at::isFloatingType(safetensors::type_of(type))) return;
  throw std::runtime_error("'" + name + "' is of the type " + type +
                           ", which is no floating-point type; save the model in one, such as "
                           "float32 or bfloat16 (of a quantized model: the weights from before)");
}

// The parts' names as this folder has them; throws unless the folder has these and no others.
std::vector<std::string> match(const Weights& weights, const TransformerOptions& options,
                               const std::vector<Part>& parts) {
  std::map<std::string, const safetensors::File*> left = weights.tensors();
  std::vector<std::string> names, missing;
  for (const Part& part : parts) {
    std::string name = part.name;
    if (left.count(name) == 0 && name.rfind(kGpt2Prefix, 0) == 0) {
      name = name.substr(std::string(kGpt2Prefix).size());
    }
    if (left.erase(name) == 0) missing.push_back(part.name);
    names.push_back(name);
  }
  if (!missing.empty()) throw std::runtime_error("it has no " + listed(missing));
  std::vector<std::string> surplus;
  for (const auto& [name, file] : left) {
    if (is_computed(options, name) || (options.tied() && name == "lm_head.weight")) continue;
    surplus.push_back(name);
  }
  if (!surplus.empty()) {
    throw std::runtime_error("it has " + listed(surplus) + ", of which the model knows nothing");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::IntArrayRef shape(weights.shape(names[i]));
    if (shape == parts[i].values.sizes()) continue;
    std::ostringstream text;
    text << "'" << names[i] << "' is " << shape << ", config.json asks for "
         << parts[i].values.sizes();
    throw std::runtime_error(text.str());
  }
  for (const std::string& name : names) check_type(weights, name);
  return names;
}

// A head that is tied, but saved: it must be what it is tied to, which is the first part.
void check_tied_head(const Weights& weights, const std::string& embedding) {
  if (weights.tensors().count("lm_head.weight") == 0) return;
  const bool same = weights.shape("lm_head.weight") == weights.shape(embedding) &&
                    weights.type("lm_head.weight") == weights.type(embedding) &&
                    weights.read("lm_head.weight").equal(weights.read(embedding));
  if (!same) {
    throw std::runtime_error("'lm_head.weight' is not '" + embedding +
                             "', although config.json says that they are tied; set "
                             "tie_word_embeddings to false");
  }
}

// --- writing

std::vector<std::string> file_names(size_t files) {
  if (files == 1) return {kFile};
  std::vector<std::string> names;
  for (size_t i = 1; i <= files; ++i) {
    names.push_back(absl::StrFormat("model-%05d-of-%05d.safetensors", i, files));
  }
  return names;
}

bool is_piece(const std::string& name) {
  static const std::regex kName("model-[0-9]{5,}-of-[0-9]{5,}\\.safetensors");
  return std::regex_match(name, kName);
}

// The pieces that the folder's index names, if there is one. What is no index names nothing.
std::set<std::string> indexed_pieces(const fs::path& place) {
  std::set<std::string> pieces;
  std::ifstream file(place / kIndex, std::ios::binary);
  if (!file.is_open()) return pieces;
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) return pieces;
  for (const Json& name : *map) {
    if (name.is_string() && is_piece(name)) pieces.insert(name.get<std::string>());
  }
  return pieces;
}

// Nothing that is replaced or removed may be a folder.
void check_no_folders(const fs::path& place, std::vector<std::string> names) {
  names.insert(names.end(), {kConfig, kFile, kIndex});
  for (const std::string& name : names) {
    std::error_code error;
    if (!fs::is_directory(place / name, error)) continue;
    throw std::runtime_error("cannot write " + (place / name).string() + ": it is a folder");
  }
}

}  // namespace

TransformerOptions read_config(const std::string& folder) {
  const fs::path path = fs::path(folder) / kConfig;
  const std::string text = text_of(path);
  try {
    return options_from_config(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot use " + folder + ": " + error.what());
  }
}

void load_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model) {
  const std::vector<Part> parts = parts_of(options, model);
  for (const Part& part : parts) {
    TORCH_CHECK_VALUE(
        !part.values.is_meta(), "'", part.name,
        "' is on meta, where values would be lost; build the model without MetaScope");
  }
  try {
    const Weights weights(folder);
    const std::vector<std::string> names = match(weights, options, parts);
    if (options.tied()) check_tied_head(weights, names.front());
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parts.size(); ++i) parts[i].values.copy_(weights.read(names[i]));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot load the weights of " + folder + ": " + error.what());
  }
}

void save_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model, int64_t max_file_bytes) {
  TORCH_CHECK_VALUE(max_file_bytes > 0, "max_file_bytes must be positive, got ", max_file_bytes);
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;
  const std::vector<Part> parts = parts_of(options, model);
  const at::ScalarType type = parts.front().values.scalar_type();
  std::vector<Tensors> files(1);
  int64_t bytes = 0, in_all = 0;
  // What can be refused is refused here: a save that fails later leaves the folder damaged.
  const std::string config = config_from_options(options, type);
  for (const Part& part : parts) {
    TORCH_CHECK_VALUE(part.values.scalar_type() == type, "all parameters must have one type, got ",
                      type, " and, for '", part.name, "', ", part.values.scalar_type());
    TORCH_CHECK_VALUE(!part.values.is_meta(), "'", part.name,
                      "' is on meta and has no values to save");
    TORCH_CHECK_VALUE(part.values.layout() == at::kStrided, "'", part.name, "' must be dense, got ",
                      part.values.layout());
    const auto size = static_cast<int64_t>(part.values.nbytes());
    in_all += size;
    if (bytes + size > max_file_bytes && !files.back().empty()) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += size;
    files.back().emplace_back(part.name, part.values);
  }

  const fs::path place(folder);
  const std::vector<std::string> names = file_names(files.size());
  check_no_folders(place, names);
  std::set<std::string> left_over = indexed_pieces(place);
  for (const std::string& name : names) left_over.erase(name);
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::error_code error;
  fs::create_directories(place, error);
  if (error) throw std::runtime_error("cannot create " + folder + ": " + error.message());
  // The config last: a new folder that has one has weights.
  const auto finish = [&] {
    command::write_file_atomically((place / kConfig).string(), config);
    for (const std::string& name : left_over) fs::remove(place / name);
  };
  if (files.size() == 1) {
    safetensors::write((place / kFile).string(), files.front(), metadata);
    fs::remove(place / kIndex);
    finish();
    return;
  }
  Json index = {{"metadata", {{"total_size", in_all}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < files.size(); ++i) {
    safetensors::write((place / names[i]).string(), files[i], metadata);
    for (const auto& tensor : files[i]) index["weight_map"][tensor.first] = names[i];
  }
  command::write_file_atomically((place / kIndex).string(), index.dump(2) + "\n");
  fs::remove(place / kFile);
  finish();
}

}  // namespace gpipe::models
