#include "models/hugging_face.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "command/files.h"
#include "meta/meta_scope.h"
#include "models/families/families.h"
#include "models/model_folder.h"
#include "models/transformer.h"
#include "safetensors/safetensors.h"

namespace gpipe::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kHead = "lm_head.weight";

using internal::check_no_folders;
using internal::checked_family;
using internal::Family;
using internal::indexed_pieces;
using internal::instead_of_weights;
using internal::is_piece;
using internal::kConfig;
using internal::kFile;
using internal::kIndex;
using internal::text_of;
using internal::texts_of;
using internal::WeightName;
using internal::WeightPart;
using internal::Weights;

// The part of a parameter that a tensor of a file holds.
struct Part {
  std::string name;   // the tensor's name in the file
  at::Tensor values;  // a view of the parameter, of the file's shape
};

// The parameters of a module that transformer() makes of these options, by their names.
class Parameters {
 public:
  Parameters(const TransformerOptions& options, const torch::nn::Module& model) {
    const auto have = model.named_parameters();
    const torch::nn::Sequential wanted = [&] {
      const MetaScope meta;
      return transformer(options);
    }();
    for (const auto& parameter : wanted->named_parameters()) {
      const at::Tensor* const found = have.find(parameter.key());
      TORCH_CHECK_VALUE(found != nullptr, "the module has no parameter '", parameter.key(),
                        "'; it must be what transformer() makes of the options, or a pipeline of "
                        "it");
      TORCH_CHECK_VALUE(found->sizes() == parameter.value().sizes(), "the module's parameter '",
                        parameter.key(), "' is ", found->sizes(), ", that of the options ",
                        parameter.value().sizes());
      values_.emplace(parameter.key(), found->detach());
    }
    for (const auto& parameter : have) {
      TORCH_CHECK_VALUE(values_.count(parameter.key()) > 0, "the module has the parameter '",
                        parameter.key(),
                        "', a transformer of the options has none such (adapters: call "
                        "merge_and_unload_lora or unload_lora of models/lora.h first)");
    }
    left_ = values_;
  }

  // Returns an undefined tensor if there is none.
  at::Tensor take(const std::string& name) {
    left_.erase(name);
    const auto found = values_.find(name);
    return found == values_.end() ? at::Tensor() : found->second;
  }
  void check_all_taken(const Family& family) const {
    TORCH_CHECK_VALUE(left_.empty(), "files of a '", family.model_type,
                      "' have no name for the parameter '", left_.begin()->first,
                      "'; set the family of the options to one that has such layers");
  }

 private:
  std::map<std::string, at::Tensor> values_, left_;
};

// Returns the part of our parameter that a file's tensor holds. `expert`: the number of the expert,
// for parts that belong to a single expert.
at::Tensor part_of(const at::Tensor& parameter, WeightPart part, const TransformerOptions& options,
                   int64_t expert = 0) {
  switch (part) {
    case WeightPart::kAll:
      return parameter;
    case WeightPart::kTransposed:
      return parameter.t();  // t() leaves a bias as it is
    case WeightPart::kQueries:
    case WeightPart::kKeys:
    case WeightPart::kValues: {
      const auto [begin, end] = internal::rows_of(part, options, parameter.size(0));
      return parameter.slice(0, begin, end);
    }
    case WeightPart::kExpertGate:
      return parameter.select(0, expert).slice(0, 0, options.expert_size());
    case WeightPart::kExpertUp:
      return parameter.select(0, expert).slice(0, options.expert_size());
    case WeightPart::kExpert:
      return parameter.select(0, expert);
    case WeightPart::kAllExperts:
      return parameter;
  }
  return {};
}

// `fused`: whether to take the names of files that have all experts in one tensor.
std::vector<Part> parts_of(const TransformerOptions& options, const torch::nn::Module& model,
                           bool fused) {
  check(options);
  const Family& family = checked_family(options);
  const std::vector<WeightName>& names = fused ? family.fused_weights : family.weights;
  Parameters parameters(options, model);
  std::vector<Part> parts;
  const auto add = [&](const WeightName& name, const std::string& block) {
    const std::string theirs = absl::StrReplaceAll(name.theirs, {{"#", block}}),
                      ours = absl::StrReplaceAll(name.ours, {{"#", block}});
    for (const char* end : {".weight", ".bias"}) {
      const at::Tensor parameter = parameters.take(ours + end);
      // A block without experts has a two-dimensional matrix under the name that is the experts'
      // matrix in other blocks, so a name of the other kind is skipped.
      if (!parameter.defined() || (parameter.dim() == 3) != internal::is_of_experts(name.part))
        continue;
      const bool each = theirs.find('@') != std::string::npos;
      for (int64_t i = 0; i < (each ? parameter.size(0) : 1); ++i) {
        const std::string part = absl::StrReplaceAll(theirs, {{"@", std::to_string(i)}});
        parts.push_back(
            {absl::StrCat(family.prefix, part, name.part == WeightPart::kAllExperts ? "" : end),
             part_of(parameter, name.part, options, i)});
      }
    }
  };
  const auto of_block = [](const WeightName& name) {
    return name.ours.find('#') != std::string::npos;
  };
  const auto first = std::find_if(names.begin(), names.end(), of_block);
  const auto last = std::find_if_not(first, names.end(), of_block);
  std::for_each(names.begin(), first, [&](const WeightName& name) { add(name, ""); });
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    std::for_each(first, last, [&](const WeightName& name) { add(name, std::to_string(block)); });
  }
  std::for_each(last, names.end(), [&](const WeightName& name) { add(name, ""); });
  if (!options.tied()) parts.push_back({kHead, parameters.take("head.weight")});
  parameters.check_all_taken(family);
  return parts;
}

// --- reading

// Whether the tensor is one that older versions saved although it is computed: a triangular mask or
// rotary frequencies.
bool is_computed(const Family& family, const std::string& name) {
  return std::any_of(family.computed.begin(), family.computed.end(),
                     [&](const std::string& end) { return absl::EndsWith(name, end); });
}

// Whether the files have all experts in one tensor.
bool is_fused(const Weights& weights, const Family& family) {
  return !family.fused_weights.empty() &&
         std::any_of(weights.tensors().begin(), weights.tensors().end(), [](const auto& tensor) {
           return absl::EndsWith(tensor.first, ".experts.gate_up_proj");
         });
}

// The weights of the source. Null if there is no source, or if it has only a config and the caller
// gives the type.
std::unique_ptr<Weights> source_of(const SaveHuggingFaceOptions& how) {
  const fs::path folder(how.source());
  const bool none = !fs::exists(folder / kFile) && !fs::exists(folder / kIndex);
  if (folder.empty() || (none && how.type().has_value())) return nullptr;
  return std::make_unique<Weights>(folder);
}

// The name that the folder has for a name of the family, or "". The folder's name may lack the
// first part, or be an older one.
std::string found_name(const Weights& weights, const Family& family, const std::string& name) {
  if (weights.has(name)) return name;
  if (absl::StartsWith(name, family.prefix)) {
    const std::string bare = name.substr(family.prefix.size());
    if (weights.has(bare)) return bare;
  }
  return name == kHead && weights.has(family.old_head) ? family.old_head : "";
}

// The names as text, like "'a', 'b' and 7 more".
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", '" : "'") + names[i] + "'";
  }
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more"
                               : text;
}

// Throws if the tensor has whole numbers: they are quantized weights, which stand for other values.
void check_type(const Weights& weights, const std::string& name) {
  const std::string& type = weights.type(name);
  if (at::isFloatingType(safetensors::type_of(type))) return;
  throw std::runtime_error("'" + name + "' is of the type " + type +
                           ", which is not a floating-point type; save the model in one, such as "
                           "float32 or bfloat16 (of a quantized model: the weights from before)");
}

// The names that the folder has for the parts. Throws unless the folder has exactly these tensors.
std::vector<std::string> match(const Weights& weights, const TransformerOptions& options,
                               const std::vector<Part>& parts) {
  const Family& family = checked_family(options);
  std::map<std::string, const safetensors::File*> left = weights.tensors();
  std::vector<std::string> names, missing;
  for (const Part& part : parts) {
    names.push_back(found_name(weights, family, part.name));
    if (left.erase(names.back()) == 0) missing.push_back(part.name);
  }
  std::vector<std::string> surplus;
  for (const auto& [name, file] : left) {
    const bool tied_head = options.tied() && (name == kHead || name == family.old_head);
    if (!is_computed(family, name) && !tied_head) surplus.push_back(name);
  }
  if (!missing.empty()) {
    std::string hint;
    if (!left.empty() && missing.size() == parts.size()) {
      hint = absl::StrCat("; its '", left.begin()->first, "' is of another model than the '",
                          family.model_type, "' of config.json");
    } else if (!surplus.empty()) {
      hint = absl::StrCat("; it has ", listed(surplus), ", of which the model knows nothing: is ",
                          "config.json that of another model?");
    } else if (missing == std::vector<std::string>{kHead}) {
      hint =
          "; if the head multiplies with the embedding's matrix, set tie_word_embeddings to true";
    }
    throw std::runtime_error(absl::StrCat("it has no ", listed(missing), hint));
  }
  if (!surplus.empty()) {
    throw std::runtime_error("it has " + listed(surplus) + ", of which the model knows nothing");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::IntArrayRef shape(weights.shape(names[i])), wanted = parts[i].values.sizes();
    if (shape == wanted) continue;
    std::ostringstream text;
    text << "'" << names[i] << "' is " << shape << ", the options (config.json) ask for " << wanted;
    // The embedding, which is the first part, and the head have a row for each word.
    const bool words = i == 0 || parts[i].name == kHead;
    if (words && shape.size() == 2 && shape[1] == wanted[1]) {
      text << ": to take the file's vocabulary, set vocab_size to " << shape[0];
    }
    throw std::runtime_error(text.str());
  }
  for (const std::string& name : names) check_type(weights, name);
  return names;
}

// If a tied head was saved all the same, it must equal the embedding, which is the first part.
void check_tied_head(const Weights& weights, const Family& family, const std::string& embedding) {
  const std::string head = found_name(weights, family, kHead);
  if (head.empty()) return;
  const bool same = weights.shape(head) == weights.shape(embedding) &&
                    weights.type(head) == weights.type(embedding) &&
                    weights.read(head).equal(weights.read(embedding));
  if (!same) {
    throw std::runtime_error("'" + head + "' is not '" + embedding +
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

// The types in which the parts are written. `source`: null if there is none; otherwise the parts
// take its names.
std::vector<at::ScalarType> types_of(std::vector<Part>& parts, const Family& family,
                                     const SaveHuggingFaceOptions& how, const Weights* source) {
  std::vector<at::ScalarType> types;
  if (source != nullptr) {
    for (Part& part : parts) {
      const std::string name = found_name(*source, family, part.name);
      if (!name.empty()) part.name = name;
      if (how.type().has_value() || name.empty()) {
        // The source does not have this tensor, because the model differs: the source's head was
        // tied, for example.
        types.push_back(how.type().value_or(part.values.scalar_type()));
      } else {
        check_type(*source, name);
        types.push_back(safetensors::type_of(source->type(name)));
      }
    }
    return types;
  }
  const at::ScalarType own = parts.front().values.scalar_type();
  for (const Part& part : parts) {
    TORCH_CHECK_VALUE(how.type().has_value() || part.values.scalar_type() == own,
                      "all parameters must have one type, got ", own, " and, for '", part.name,
                      "', ", part.values.scalar_type());
    types.push_back(how.type().value_or(own));
  }
  return types;
}

std::string config_of(const TransformerOptions& options, at::ScalarType type,
                      const SaveHuggingFaceOptions& how) {
  if (how.source().empty()) return config_from_options(options, type);
  const fs::path path = fs::path(how.source()) / kConfig;
  try {
    return config_from_options(options, how.type(), text_of(path));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot use " + how.source() + ": " + error.what());
  }
}

}  // namespace

TransformerOptions read_config(const std::string& folder) {
  const fs::path path = fs::path(folder) / kConfig;
  if (!fs::exists(path)) {
    const std::string hint = instead_of_weights(folder);
    if (!hint.empty()) throw std::runtime_error("there is no " + path.string() + hint);
  }
  const std::string text = text_of(path);
  try {
    return options_from_config(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot use " + folder + ": " + error.what());
  }
}

std::optional<c10::ScalarType> read_type(const std::string& folder) {
  return type_from_config(text_of(fs::path(folder) / kConfig));
}

void load_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model) {
  std::vector<Part> parts = parts_of(options, model, /*fused=*/false);
  for (const Part& part : parts) {
    TORCH_CHECK_VALUE(
        !part.values.is_meta(), "'", part.name,
        "' is on meta, where values would be lost; build the model without MetaScope, and over "
        "several processes load the whole model before the pipeline is made of it");
  }
  try {
    const Weights weights(folder);
    if (is_fused(weights, checked_family(options))) parts = parts_of(options, model, true);
    const std::vector<std::string> names = match(weights, options, parts);
    if (options.tied()) check_tied_head(weights, checked_family(options), names.front());
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parts.size(); ++i) parts[i].values.copy_(weights.read(names[i]));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot load the weights of " + folder + ": " + error.what());
  }
}

void save_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model, int64_t max_file_bytes) {
  save_hugging_face(folder, options, model,
                    SaveHuggingFaceOptions().max_file_bytes(max_file_bytes));
}

void save_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model, const SaveHuggingFaceOptions& how) {
  TORCH_CHECK_VALUE(how.max_file_bytes() > 0, "max_file_bytes must be positive, got ",
                    how.max_file_bytes());
  std::vector<Part> parts = parts_of(options, model, /*fused=*/false);
  // All checks come before anything is written, because a save that fails later leaves the folder
  // damaged.
  std::vector<at::ScalarType> types;
  {
    const Family& family = checked_family(options);
    const std::unique_ptr<Weights> source = source_of(how);
    if (source != nullptr && is_fused(*source, family)) parts = parts_of(options, model, true);
    types = types_of(parts, family, how, source.get());
  }
  const std::string config = config_of(options, types.front(), how);
  const std::vector<std::pair<std::string, std::string>> others = texts_of(how.source());
  std::vector<std::vector<size_t>> files(1);  // [file] the numbers of its parts
  int64_t bytes = 0, in_all = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& values = parts[i].values;
    TORCH_CHECK_VALUE(!values.is_meta(), "'", parts[i].name,
                      "' is on meta and has no values to save; over several processes call "
                      "save_checkpoint in all, then load_weights into the whole model in one");
    TORCH_CHECK_VALUE(values.layout() == at::kStrided, "'", parts[i].name, "' must be dense, got ",
                      values.layout());
    const auto size = values.numel() * static_cast<int64_t>(c10::elementSize(types[i]));
    in_all += size;
    if (bytes + size > how.max_file_bytes() && !files.back().empty()) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += size;
    files.back().push_back(i);
  }

  const fs::path place(folder);
  const std::vector<std::string> names = file_names(files.size());
  check_no_folders(place, names);
  std::set<std::string> left_over = indexed_pieces(place);
  for (const std::string& name : names) left_over.erase(name);
  std::error_code error;
  fs::create_directories(place, error);
  if (error) throw std::runtime_error("cannot create " + folder + ": " + error.message());
  Json index = {{"metadata", {{"total_size", in_all}}}, {"weight_map", Json::object()}};
  for (size_t file = 0; file < files.size(); ++file) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const size_t i : files[file]) {
      tensors.emplace_back(parts[i].name, parts[i].values.to(types[i]));
      index["weight_map"][parts[i].name] = names[file];
    }
    safetensors::write((place / names[file]).string(), tensors, {{"format", "pt"}});
  }
  if (files.size() == 1) {
    fs::remove(place / kIndex);
  } else {
    command::write_file_atomically((place / kIndex).string(), index.dump(2) + "\n");
    fs::remove(place / kFile);
  }
  for (const auto& [name, text] : others) {
    command::write_file_atomically((place / name).string(), text);
  }
  // The config is written last, so that a new folder that has a config has its weights, too.
  command::write_file_atomically((place / kConfig).string(), config);
  for (const std::string& name : left_over) fs::remove(place / name);
}

}  // namespace gpipe::models
