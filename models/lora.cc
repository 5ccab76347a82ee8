#include "models/lora.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "command/files.h"
#include "models/adaptable_linear.h"
#include "models/families/families.h"
#include "safetensors/safetensors.h"

namespace gpipe::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using internal::AdapterShape;
using internal::Family;
using internal::WeightName;
using internal::WeightPart;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kFile = "adapter_model.safetensors";
constexpr const char* kAllLinear = "all-linear";
constexpr const char* kPrefix = "base_model.model.";

using Linears = std::vector<std::shared_ptr<AdaptableLinearImpl>>;

// A layer that a name or a pattern may match.
struct Candidate {
  std::string name;
  std::shared_ptr<AdaptableLinearImpl> layer;  // null: cannot take an adapter
  std::string type;                            // the type of a module that takes no adapters
  int64_t begin = 0, end = 0;                  // rows
  bool transposed = false;
};

// The adaptable layers of the model. A layer that the model has at several places is listed once.
Linears linears(const torch::nn::Module& model) {
  Linears found;
  std::set<const AdaptableLinearImpl*> seen;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const auto linear = std::dynamic_pointer_cast<AdaptableLinearImpl>(module);
    if (linear != nullptr && seen.insert(linear.get()).second) found.push_back(linear);
  }
  return found;
}

// The candidates, named as the model's own modules.
std::vector<Candidate> candidates(const torch::nn::Module& model) {
  std::vector<Candidate> found;
  for (const auto& module : model.named_modules("", /*include_self=*/false)) {
    const auto linear = std::dynamic_pointer_cast<AdaptableLinearImpl>(module.value());
    if (std::dynamic_pointer_cast<internal::LowRankAdapterImpl>(module.value()) != nullptr)
      continue;
    found.push_back({module.key(), linear, module.value()->name(), 0,
                     linear == nullptr ? 0 : linear->options.out_features()});
  }
  return found;
}

// The candidates, named as the modules of Python's transformers.
std::vector<Candidate> candidates(const torch::nn::Module& model,
                                  const TransformerOptions& options) {
  check(options);
  const Family& family = internal::checked_family(options);
  const auto modules = model.named_modules("", /*include_self=*/false);
  std::vector<Candidate> found;
  const auto add = [&](const WeightName& name, const std::string& block) {
    const auto* const module = modules.find(absl::StrReplaceAll(name.ours, {{"#", block}}));
    // Python has the matrices of experts as parameters, not as modules.
    if (module == nullptr || internal::is_of_experts(name.part)) return;
    const auto weights = (*module)->named_parameters(/*recurse=*/false);
    const at::Tensor* const weight = weights.find("weight");
    if (weight == nullptr || weight->dim() == 3) return;
    const auto [begin, end] = internal::rows_of(name.part, options, weight->size(0));
    // In Python a router that chooses experts is a class of its own, not a linear layer.
    const bool router = absl::EndsWith(name.ours, ".router");
    found.push_back({family.prefix + absl::StrReplaceAll(name.theirs, {{"#", block}}),
                     std::dynamic_pointer_cast<AdaptableLinearImpl>(*module),
                     router ? "router" : (*module)->name(), begin, end,
                     name.part == WeightPart::kTransposed});
  };
  for (const WeightName& name : family.weights) {
    if (name.ours.find('#') == std::string::npos) add(name, "");
  }
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    for (const WeightName& name : family.weights) {
      if (name.ours.find('#') != std::string::npos) add(name, std::to_string(block));
    }
  }
  found.push_back({"lm_head", nullptr, "TokenHead"});
  return found;
}

void check(const LoraOptions& lora) {
  TORCH_CHECK_VALUE(lora.rank() >= 1, "rank must be at least 1, got ", lora.rank());
  TORCH_CHECK_VALUE(std::isfinite(lora.alpha()), "alpha must be finite, got ", lora.alpha());
  TORCH_CHECK_VALUE(lora.dropout() >= 0 && lora.dropout() < 1,
                    "dropout must be at least 0 and below 1, got ", lora.dropout());
  TORCH_CHECK_VALUE(lora.target_modules().empty() != lora.target_pattern().empty(),
                    "give target_modules or a target_pattern, got ",
                    lora.target_modules().empty() ? "neither" : "both");
  const std::vector<std::string>& names = lora.target_modules();
  TORCH_CHECK_VALUE(
      names.size() < 2 || std::find(names.begin(), names.end(), kAllLinear) == names.end(),
      "target_modules are '", absl::StrJoin(names, "', '"), "', and '", kAllLinear,
      "' stands for all layers: give it alone, or names");
}

bool is_or_ends_with(const std::string& name, const std::string& target) {
  return name == target || absl::EndsWith(name, absl::StrCat(".", target));
}

bool is_one_of(const std::string& name, const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return is_or_ends_with(name, target); });
}

// Says which candidates the names or the pattern match.
class Matcher {
 public:
  explicit Matcher(const LoraOptions& lora) : lora_(lora) {
    if (lora.target_pattern().empty()) return;
    try {
      pattern_.emplace(lora.target_pattern());
    } catch (const std::regex_error& error) {
      TORCH_CHECK_VALUE(false, "target_pattern '", lora.target_pattern(),
                        "' is not a valid regular expression: ", error.what());
    }
  }

  bool operator()(const Candidate& candidate) const {
    if (is_one_of(candidate.name, lora_.exclude_modules())) return false;
    // "all-linear" also matches a torch::nn::Linear, which is refused later: its type's name ends
    // in "nn::LinearImpl".
    return all_linear()
               ? candidate.layer != nullptr || absl::EndsWith(candidate.type, "nn::LinearImpl")
               : names(candidate.name);
  }
  // Whether a layer of this name that has an adapter would have got it by these options.
  bool may_have_adapted(const std::string& name) const {
    return !is_one_of(name, lora_.exclude_modules()) && (all_linear() || names(name));
  }

  // Throws if a name matches no candidate.
  void check_all_met(const std::vector<Candidate>& all) const {
    if (!all_linear()) check_met(all, lora_.target_modules(), "target_modules");
    check_met(all, lora_.exclude_modules(), "exclude_modules");
  }

  static std::string examples(const std::vector<Candidate>& all) {
    std::set<std::string> names;
    for (const Candidate& candidate : all) {
      if (candidate.layer == nullptr) continue;
      names.insert(candidate.name);
      if (names.size() == 8) break;
    }
    return names.empty() ? "none: the model has no AdaptableLinear (models/adaptable_linear.h)"
                         : absl::StrCat("'", absl::StrJoin(names, "', '"), "' ...");
  }

 private:
  static void check_met(const std::vector<Candidate>& all, const std::vector<std::string>& names,
                        const char* option) {
    std::vector<std::string> unmet;
    for (const std::string& target : names) {
      const bool met = std::any_of(all.begin(), all.end(), [&](const Candidate& candidate) {
        return is_or_ends_with(candidate.name, target);
      });
      if (!met) unmet.push_back(target);
    }
    TORCH_CHECK_VALUE(unmet.empty(), "no layer has the name '", absl::StrJoin(unmet, "', '"),
                      "', or one that ends so behind a dot (", option, "); the names are ",
                      examples(all));
  }
  bool names(const std::string& name) const {
    return pattern_.has_value() ? std::regex_match(name, *pattern_)
                                : is_one_of(name, lora_.target_modules());
  }
  bool all_linear() const { return lora_.target_modules() == std::vector<std::string>{kAllLinear}; }

  const LoraOptions& lora_;
  std::optional<std::regex> pattern_;
};

// The candidates to be adapted. `each`: whether each name must match a candidate. Throws before
// anything is changed.
std::vector<Candidate> targets(const std::vector<Candidate>& all, const LoraOptions& lora,
                               bool each) {
  check(lora);
  const Matcher matches(lora);
  std::vector<Candidate> found;
  for (const Candidate& candidate : all) {
    if (!matches(candidate)) continue;
    // A layer that the model has at several places is adapted once, under the first of its names.
    const bool again = std::any_of(found.begin(), found.end(), [&](const Candidate& other) {
      return candidate.layer != nullptr && other.layer == candidate.layer &&
             other.begin == candidate.begin;
    });
    if (again) continue;
    TORCH_CHECK_VALUE(candidate.layer != nullptr, "'", candidate.name, "' is a ", candidate.type,
                      ", which takes no adapter: a layer of one's own must have an AdaptableLinear "
                      "(models/adaptable_linear.h) in the place of a torch::nn::Linear; or leave "
                      "it out by exclude_modules");
    TORCH_CHECK_VALUE(candidate.layer->adapters().empty(), "'", candidate.name,
                      "' has an adapter already; take it away with merge_and_unload_lora or "
                      "unload_lora");
    found.push_back(candidate);
  }
  if (each) matches.check_all_met(all);
  TORCH_CHECK_VALUE(
      !found.empty(), "nothing is to be adapted: ",
      lora.target_pattern().empty()
          ? absl::StrCat("target_modules are '", absl::StrJoin(lora.target_modules(), "', '"), "'")
          : absl::StrCat("target_pattern is '", lora.target_pattern(), "'"),
      lora.exclude_modules().empty()
          ? ""
          : absl::StrCat(", exclude_modules are '", absl::StrJoin(lora.exclude_modules(), "', '"),
                         "'"),
      ", the names are ", Matcher::examples(all));
  return found;
}

double scaling(const LoraOptions& lora) {
  const auto rank = static_cast<double>(lora.rank());
  return lora.alpha() / (lora.rank_stabilized() ? std::sqrt(rank) : rank);
}

std::vector<std::string> adapt(const torch::nn::Module& model,
                               const std::vector<Candidate>& targets, const LoraOptions& lora) {
  for (at::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  std::vector<std::string> names;
  std::vector<std::shared_ptr<AdaptableLinearImpl>> layers;  // each once
  std::map<AdaptableLinearImpl*, std::vector<AdapterShape>> shapes;
  for (const Candidate& target : targets) {
    names.push_back(target.name);
    std::vector<AdapterShape>& of_layer = shapes[target.layer.get()];
    if (of_layer.empty()) layers.push_back(target.layer);
    of_layer.push_back({target.name, target.begin, target.end, lora.rank(), scaling(lora),
                        lora.dropout(), lora.dora(), target.transposed});
  }
  for (const auto& layer : layers) {
    std::vector<AdapterShape>& of_layer = shapes[layer.get()];
    std::sort(of_layer.begin(), of_layer.end(),
              [](const AdapterShape& a, const AdapterShape& b) { return a.begin < b.begin; });
    layer->add_adapters(of_layer);
  }
  return names;
}

std::vector<std::string> add(const torch::nn::Module& model, const std::vector<Candidate>& all,
                             const LoraOptions& lora) {
  std::vector<std::string> names = adapt(model, targets(all, lora, /*each=*/true), lora);
  for (const auto& layer : linears(model)) {
    for (internal::LowRankAdapter adapter : layer->adapters()) adapter->draw(layer->weight);
  }
  return names;
}

// --- files

// The name of a file's tensor and the adapter's parameter that it holds.
struct Part {
  std::string name;
  at::Tensor values;
};

std::vector<Part> parts_of(const torch::nn::Module& model) {
  std::vector<Part> parts;
  for (const auto& layer : linears(model)) {
    for (const internal::LowRankAdapter& adapter : layer->adapters()) {
      const std::string name = absl::StrCat(kPrefix, adapter->shape().name);
      parts.push_back({absl::StrCat(name, ".lora_A.weight"), adapter->A.detach()});
      parts.push_back({absl::StrCat(name, ".lora_B.weight"), adapter->B.detach()});
      if (!adapter->shape().dora) continue;
      parts.push_back({absl::StrCat(name, ".lora_magnitude_vector"), adapter->magnitude.detach()});
    }
  }
  return parts;
}

[[noreturn]] void refuse(const std::string& folder, const std::string& reason) {
  throw std::runtime_error(absl::StrCat("cannot use the adapter of ", folder, ": ", reason));
}

// Whether a field that is not supported here has a value that does not change the computation.
bool is_nothing(const Json& value) {
  return value.is_null() || value == false || value == "none" || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

template <typename Value>
void take(Json& fields, const std::string& folder, const char* name, Value* value) {
  const Json given = fields.value(name, Json());
  fields.erase(name);
  if (given.is_null()) return;
  // The JSON library would convert between numbers and Booleans, and cut fractions off, so such
  // values are refused.
  const bool is_other_number =
      std::is_arithmetic_v<Value> && (given.is_boolean() != std::is_same_v<Value, bool> ||
                                      (std::is_integral_v<Value> && given.is_number_float()));
  if (is_other_number) {
    refuse(folder, absl::StrCat(kConfig, ": ", name, " cannot be ", given.dump()));
  }
  try {
    *value = given.get<Value>();
  } catch (const Json::exception&) {
    refuse(folder, absl::StrCat(kConfig, ": ", name, " cannot be ", given.dump()));
  }
}

LoraOptions options_from(Json fields, const std::string& folder) {
  LoraOptions lora;
  std::string kind;
  take(fields, folder, "peft_type", &kind);
  if (kind != "LORA")
    refuse(folder, absl::StrCat("peft_type must be \"LORA\", got \"", kind, "\""));
  take(fields, folder, "r", &lora.rank());
  take(fields, folder, "lora_alpha", &lora.alpha());
  take(fields, folder, "lora_dropout", &lora.dropout());
  take(fields, folder, "use_rslora", &lora.rank_stabilized());
  take(fields, folder, "use_dora", &lora.dora());
  take(fields, folder, "exclude_modules", &lora.exclude_modules());
  const Json modules = fields.value("target_modules", Json());
  if (modules.is_string() && modules != kAllLinear) {
    take(fields, folder, "target_modules", &lora.target_pattern());
  } else if (modules.is_string()) {
    lora.target_modules({kAllLinear});
  } else {
    take(fields, folder, "target_modules", &lora.target_modules());
  }
  const Json drawn = fields.value("init_lora_weights", Json(true));
  static const std::set<std::string> kKeepBase = {"gaussian", "eva", "orthogonal"};
  if (!drawn.is_boolean() && !(drawn.is_string() && kKeepBase.count(drawn) > 0)) {
    refuse(folder, absl::StrCat("init_lora_weights ", drawn.dump(),
                                " has changed the base's weights; convert it with peft's "
                                "path_initial_model_for_weight_conversion"));
  }
  // These fields do not change what is computed: they are about the origin and the initialization
  // of the adapter, and about how to read layers of other kinds.
  for (const char* name :
       {"auto_mapping", "base_model_name_or_path", "eva_config", "fan_in_fan_out", "inference_mode",
        "init_lora_weights", "layers_pattern", "loftq_config", "megatron_core", "peft_version",
        "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type"}) {
    fields.erase(name);
  }
  for (const auto& [name, value] : fields.items()) {
    if (is_nothing(value)) continue;
    refuse(folder, absl::StrCat(kConfig, " has \"", name, "\": ", value.dump(),
                                ", which is not known here"));
  }
  return lora;
}

LoraOptions load(const std::string& folder, const torch::nn::Module& model,
                 const std::vector<Candidate>& all) {
  LoraOptions lora = read_lora(folder);
  const std::vector<Candidate> found = targets(all, lora, /*each=*/false);
  const safetensors::File file((fs::path(folder) / kFile).string());
  std::map<std::string, std::vector<int64_t>> wanted;
  for (const Candidate& target : found) {
    TORCH_CHECK_VALUE(
        !target.layer->weight.is_meta(), "'", target.name,
        "' is on meta, where values would be lost; build the model without MetaScope, and over "
        "several processes load the whole model before the pipeline is made of it");
    const std::string name = absl::StrCat(kPrefix, target.name);
    const int64_t rows = target.end - target.begin;
    wanted[absl::StrCat(name, ".lora_A.weight")] = {lora.rank(),
                                                    target.layer->options.in_features()};
    wanted[absl::StrCat(name, ".lora_B.weight")] = {rows, lora.rank()};
    if (lora.dora()) wanted[absl::StrCat(name, ".lora_magnitude_vector")] = {rows};
  }
  const auto& tensors = file.header().tensors;
  for (const auto& [name, shape] : wanted) {
    const auto have = tensors.find(name);
    if (have == tensors.end()) refuse(folder, absl::StrCat("it has no '", name, "'"));
    if (have->second.shape != shape) {
      std::ostringstream text;
      text << "'" << name << "' is " << at::IntArrayRef(have->second.shape)
           << ", the model asks for " << at::IntArrayRef(shape);
      refuse(folder, text.str());
    }
    if (!at::isFloatingType(safetensors::type_of(have->second.type))) {
      refuse(folder, absl::StrCat("'", name, "' is of the type ", have->second.type,
                                  ", which is not a floating-point type"));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (wanted.count(name) == 0) {
      refuse(folder, absl::StrCat("it has '", name, "', of which the model knows nothing"));
    }
  }
  adapt(model, found, lora);
  const torch::NoGradGuard no_grad;
  for (Part& part : parts_of(model)) part.values.copy_(file.read(part.name));
  return lora;
}

}  // namespace

std::vector<std::string> add_lora(const torch::nn::Module& model, const LoraOptions& lora) {
  return add(model, candidates(model), lora);
}

std::vector<std::string> add_lora(const torch::nn::Module& model, const TransformerOptions& options,
                                  const LoraOptions& lora) {
  return add(model, candidates(model, options), lora);
}

void merge_lora(const torch::nn::Module& model) {
  for (const auto& layer : linears(model)) layer->merge();
}

void unmerge_lora(const torch::nn::Module& model) {
  for (const auto& layer : linears(model)) layer->unmerge();
}

void merge_and_unload_lora(const torch::nn::Module& model) {
  for (const auto& layer : linears(model)) layer->merge_and_remove_adapters();
}

void unload_lora(const torch::nn::Module& model) {
  for (const auto& layer : linears(model)) layer->remove_adapters();
}

LoraOptions read_lora(const std::string& folder) {
  const std::string path = (fs::path(folder) / kConfig).string();
  const Json fields = Json::parse(command::read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object()) refuse(folder, absl::StrCat(path, " is not a JSON object"));
  return options_from(fields, folder);
}

LoraOptions load_lora(const std::string& folder, const torch::nn::Module& model) {
  return load(folder, model, candidates(model));
}

LoraOptions load_lora(const std::string& folder, const torch::nn::Module& model,
                      const TransformerOptions& options) {
  return load(folder, model, candidates(model, options));
}

void save_lora(const std::string& folder, const torch::nn::Module& model, const LoraOptions& lora,
               const std::string& base) {
  check(lora);
  const Matcher matches(lora);
  const std::vector<Part> parts = parts_of(model);
  TORCH_CHECK_VALUE(!parts.empty(), "the model has no adapters; add_lora adds them");
  bool transposed = false;
  for (const auto& layer : linears(model)) {
    for (const internal::LowRankAdapter& adapter : layer->adapters()) {
      const AdapterShape& shape = adapter->shape();
      transposed = transposed || shape.transposed;
      TORCH_CHECK_VALUE(shape.rank == lora.rank() && shape.scaling == scaling(lora) &&
                            shape.dropout == lora.dropout() && shape.dora == lora.dora(),
                        "the adapter of '", shape.name, "' has rank ", shape.rank, ", scaling ",
                        shape.scaling, ", dropout ", shape.dropout, ", DoRA ", shape.dora,
                        ", the options say ", lora.rank(), ", ", scaling(lora), ", ",
                        lora.dropout(), ", ", lora.dora());
      TORCH_CHECK_VALUE(matches.may_have_adapted(shape.name), "'", shape.name,
                        "' has an adapter, and the options leave it out: give those that add_lora "
                        "was given");
    }
  }
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const Part& part : parts) {
    TORCH_CHECK_VALUE(!part.values.is_meta(), "'", part.name,
                      "' is on meta and has no values to save; over several processes call "
                      "save_checkpoint in all, then load_weights into the whole model in one");
    tensors.emplace_back(part.name, part.values);
  }
  Json alpha = lora.alpha();
  if (lora.alpha() == std::floor(lora.alpha()) && std::abs(lora.alpha()) < 1e15) {
    alpha = static_cast<int64_t>(lora.alpha());
  }
  Json targets = lora.target_modules();
  if (!lora.target_pattern().empty()) targets = lora.target_pattern();
  if (lora.target_modules() == std::vector<std::string>{kAllLinear}) targets = kAllLinear;
  const Json config = {
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"exclude_modules", lora.exclude_modules().empty() ? Json() : Json(lora.exclude_modules())},
      {"fan_in_fan_out", transposed},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", alpha},
      {"lora_dropout", lora.dropout()},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", lora.rank()},
      {"target_modules", targets},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", lora.dora()},
      {"use_rslora", lora.rank_stabilized()}};
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw std::runtime_error(absl::StrCat("cannot create ", folder, ": ", error.message()));
  safetensors::write((fs::path(folder) / kFile).string(), tensors, {{"format", "pt"}});
  command::write_file_atomically((fs::path(folder) / kConfig).string(),
                                 absl::StrCat(config.dump(2), "\n"));
}

}  // namespace gpipe::models
