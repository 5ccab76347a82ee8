#include "models/families/rotary_fields.h"

#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"

namespace gpipe::models::internal {
namespace {

using Json = nlohmann::json;

struct KindName {
  RotaryKind kind;
  const char* name;
};
constexpr KindName kKinds[] = {
    {RotaryKind::kPlain, "default"},     {RotaryKind::kLinear, "linear"},
    {RotaryKind::kDynamic, "dynamic"},   {RotaryKind::kYarn, "yarn"},
    {RotaryKind::kLongRope, "longrope"}, {RotaryKind::kLlama3, "llama3"},
};

// Returns the object, or an empty one for null.
Json object(const Json& value, const std::string& name) {
  if (value.is_null()) return Json::object();
  if (!value.is_object()) refuse_config(absl::StrCat(name, " must be an object"));
  return value;
}

RotaryKind kind_named(const std::string& name, const std::string& where, bool as_phi3) {
  if (as_phi3 && (name == "su" || name == "yarn")) return RotaryKind::kLongRope;
  for (const KindName& each : kKinds) {
    const bool of_phi3 = each.kind == RotaryKind::kPlain || each.kind == RotaryKind::kLongRope;
    if (name == each.name && (of_phi3 || !as_phi3)) return each.kind;
  }
  refuse_config(absl::StrCat(
      where, ": rotary positions of the type '", name, "' are not computed here; 'default'",
      as_phi3 ? " and 'longrope'" : ", 'linear', 'dynamic', 'yarn', 'longrope' and 'llama3'",
      " are"));
}

double needed(ConfigFields& fields, const std::string& where, const char* name) {
  if (!fields.has(name)) refuse_config(absl::StrCat(where, " has no ", name));
  double value = 0;
  fields.number(name, &value, 0);
  return value;
}

std::vector<double> needed_list(ConfigFields& fields, const std::string& where, const char* name) {
  const Json list = fields.take(name);
  if (!list.is_array()) refuse_config(absl::StrCat(where, ".", name, " must be a list of numbers"));
  std::vector<double> values;
  for (const Json& value : list) {
    if (!value.is_number()) {
      refuse_config(absl::StrCat(where, ".", name, " must be a list of numbers, got ", shown(value),
                                 " in it"));
    }
    values.push_back(value.get<double>());
  }
  return values;
}

// The field's factor; if it has none, the quotient of the new and the original length.
double factor_or_growth(ConfigFields& fields, int64_t positions, int64_t original) {
  double factor = 0;
  fields.number("factor", &factor, 0, /*null=*/0);
  return factor > 0 ? factor : static_cast<double>(positions) / static_cast<double>(original);
}

// Returns 0 if there is no such field.
double number_or_zero(ConfigFields& fields, const char* name) {
  double value = 0;
  if (fields.has(name)) fields.number(name, &value, 0, /*null=*/0);
  return value;
}

double yarn_scale(double factor, double times) {
  return factor <= 1 ? 1 : 0.1 * times * std::log(factor) + 1;
}

void read_yarn(ConfigFields& fields, const std::string& where, int64_t positions,
               RotaryOptions* rotary) {
  if (!fields.has("factor")) refuse_config(absl::StrCat(where, " has no factor"));
  const double factor = factor_or_growth(fields, positions, rotary->original_positions());
  const double given = number_or_zero(fields, "attention_factor"),
               scale = number_or_zero(fields, "mscale"),
               scale_all = number_or_zero(fields, "mscale_all_dim");
  const double fast = number_or_zero(fields, "beta_fast"),
               slow = number_or_zero(fields, "beta_slow");
  bool whole_range = true;
  fields.flag("truncate", &whole_range, true, /*null=*/false);
  rotary->factor(factor).whole_range(whole_range);
  if (fast != 0) rotary->beta_fast(fast);
  if (slow != 0) rotary->beta_slow(slow);
  if (given != 0) {
    rotary->attention_factor(given);
  } else if (scale != 0 && scale_all != 0) {
    rotary->attention_factor(yarn_scale(factor, scale) / yarn_scale(factor, scale_all));
  } else {
    rotary->attention_factor(yarn_scale(factor, 1));
  }
}

void read_long_rope(ConfigFields& fields, const std::string& where, int64_t positions,
                    RotaryOptions* rotary) {
  const double factor = factor_or_growth(fields, positions, rotary->original_positions());
  const double given = number_or_zero(fields, "attention_factor");
  const auto original = static_cast<double>(rotary->original_positions());
  rotary->factor(factor)
      .short_factors(needed_list(fields, where, "short_factor"))
      .long_factors(needed_list(fields, where, "long_factor"))
      .attention_factor(given != 0    ? given
                        : factor <= 1 ? 1
                                      : std::sqrt(1 + std::log(factor) / std::log(original)));
}

struct Rotary {
  double theta, part;
  RotaryOptions options;
};

// Reads the object with the rotary fields. `theta`, `part` and `positions` are the defaults of its
// fields. If `original` is not 0, it replaces the original length in the object.
Rotary read_rotary(const Json& json, const std::string& where, double theta, double part,
                   int64_t positions, const RotaryDefaults& defaults, int64_t original) {
  ConfigFields fields = ConfigFields::reader(json, absl::StrCat(where, "."));
  std::string name;
  // If the object has both names, the newer one counts.
  fields.text(fields.has("rope_type") ? "rope_type" : "type", &name, "default");
  fields.ignore({"type"});
  const RotaryKind kind = kind_named(name, where, defaults.as_phi3);
  fields.number("rope_theta", &theta, theta);
  fields.number("partial_rotary_factor", &part, part);
  // In RotaryOptions, a theta of 0 would mean TransformerOptions::rope_theta.
  if (!(theta > 0)) {
    refuse_config(absl::StrCat("rope_theta must be a positive number, got ", theta));
  }
  if (part != 1 && !defaults.may_be_partial) {
    refuse_config(absl::StrCat(
        "partial_rotary_factor must be 1: this family's models rotate whole heads, got ", part));
  }
  RotaryOptions rotary;
  rotary.kind(kind);
  if (kind == RotaryKind::kYarn || kind == RotaryKind::kLongRope || kind == RotaryKind::kLlama3) {
    int64_t own = positions;
    fields.whole("original_max_position_embeddings", &own, positions);
    rotary.original_positions(original > 0 ? original : own);
    if (rotary.original_positions() < 1) {
      refuse_config(absl::StrCat(where, ".original_max_position_embeddings must be positive, got ",
                                 rotary.original_positions()));
    }
  }
  switch (kind) {
    case RotaryKind::kPlain:
      break;
    case RotaryKind::kLinear:
    case RotaryKind::kDynamic:
      rotary.factor(needed(fields, where, "factor"));
      break;
    case RotaryKind::kYarn:
      // The number of rotations is computed with the logarithm of theta.
      if (!(theta > 1)) {
        refuse_config(
            absl::StrCat("rope_theta must be above 1 for positions of the type yarn, got ", theta));
      }
      read_yarn(fields, where, positions, &rotary);
      break;
    case RotaryKind::kLongRope:
      read_long_rope(fields, where, positions, &rotary);
      break;
    case RotaryKind::kLlama3:
      rotary.factor(needed(fields, where, "factor"))
          .low_freq_factor(needed(fields, where, "low_freq_factor"))
          .high_freq_factor(needed(fields, where, "high_freq_factor"));
      break;
  }
  if (original > 0) fields.ignore({"original_max_position_embeddings"});
  fields.check_all_seen();
  return {theta, part, rotary};
}

Json written(const RotaryOptions& rotary, double theta, int64_t positions) {
  Json json = {{"rope_theta", theta}};
  for (const KindName& each : kKinds) {
    if (each.kind == rotary.kind()) json["rope_type"] = each.name;
  }
  if (rotary.kind() == RotaryKind::kPlain) return json;
  json["factor"] = rotary.factor();
  if (rotary.kind() == RotaryKind::kLinear || rotary.kind() == RotaryKind::kDynamic) return json;
  json["original_max_position_embeddings"] =
      rotary.original_positions() > 0 ? rotary.original_positions() : positions;
  if (rotary.kind() == RotaryKind::kLlama3) {
    json["low_freq_factor"] = rotary.low_freq_factor();
    json["high_freq_factor"] = rotary.high_freq_factor();
    return json;
  }
  json["attention_factor"] = rotary.attention_factor();
  if (rotary.kind() == RotaryKind::kYarn) {
    json["beta_fast"] = rotary.beta_fast();
    json["beta_slow"] = rotary.beta_slow();
    json["truncate"] = rotary.whole_range();
  } else {
    json["short_factor"] = rotary.short_factors();
    json["long_factor"] = rotary.long_factors();
  }
  return json;
}

bool same(const LayerKind& a, const LayerKind& b) {
  return a.window() == b.window() && a.rotates() == b.rotates() && a.sparse() == b.sparse();
}

// If the number of layers is far too large, check() refuses it later. Until then no list of that
// size is made.
int64_t listed_layers(const TransformerOptions& options) {
  return options.num_layers() <= 1024 ? options.num_layers() : 0;
}

// Sets the kind of each layer. Their rotary options are set later.
void set_layers(TransformerOptions& options,
                const std::function<LayerKind(int64_t block)>& kind_of_block) {
  std::vector<LayerKind> kinds;
  std::vector<int64_t> of_block;
  for (int64_t i = 0; i < listed_layers(options); ++i) {
    const LayerKind layer = kind_of_block(i);
    size_t kind = 0;
    while (kind < kinds.size() && !same(kinds[kind], layer)) ++kind;
    if (kind == kinds.size()) kinds.push_back(layer);
    of_block.push_back(static_cast<int64_t>(kind));
  }
  if (kinds.empty()) kinds.emplace_back();
  options.block().kinds(kinds).kind_of_block(kinds.size() > 1 ? of_block : std::vector<int64_t>());
}

const RotaryOptions& first_rotary(const BlockOptions& block, bool with_window) {
  static const RotaryOptions kNone;
  for (const LayerKind& kind : block.kinds()) {
    if (kind.rotates() && (kind.window() > 0) == with_window) return kind.rotary();
  }
  return kNone;
}

// Removes the fields that version 4 has beside the object.
Json for_version_4(Json json) {
  json.erase("rope_theta");
  json.erase("partial_rotary_factor");
  return json;
}

}  // namespace

void rotary_fields(ConfigFields& fields, TransformerOptions& options,
                   const RotaryDefaults& defaults) {
  BlockOptions& block = options.block();
  if (!fields.reading()) {
    const LayerKind* rotating = nullptr;
    for (const LayerKind& kind : block.kinds()) {
      if (rotating == nullptr && kind.rotates()) rotating = &kind;
    }
    const RotaryOptions rotary = rotating == nullptr ? RotaryOptions() : rotating->rotary();
    Json json = written(rotary, options.rope_theta(), options.max_positions());
    if (defaults.may_be_partial) {
      json["partial_rotary_factor"] = rotary.part();
      fields.put(defaults.part_name, rotary.part());
    }
    // Version 5 of transformers reads the object, version 4 the separate field of theta.
    fields.put("rope_parameters", json);
    fields.put(defaults.theta_name, options.rope_theta());
    if (rotary.kind() != RotaryKind::kPlain) fields.put("rope_scaling", for_version_4(json));
    if (defaults.as_phi3 && rotary.original_positions() > 0) {
      fields.put("original_max_position_embeddings", rotary.original_positions());
    }
    return;
  }
  const Json scaling = object(fields.take("rope_scaling"), "rope_scaling");
  const Json parameters = object(fields.take("rope_parameters"), "rope_parameters");
  double theta = defaults.theta, part = defaults.part;
  fields.number(defaults.theta_name, &theta, theta);
  fields.number(defaults.part_name, &part, part);
  int64_t original = 0;
  if (defaults.as_phi3) {
    fields.whole("original_max_position_embeddings", &original, 4096);
    if (original < 1) {
      refuse_config(
          absl::StrCat("original_max_position_embeddings must be positive, got ", original));
    }
  }
  const Rotary read = read_rotary(scaling.empty() ? parameters : scaling,
                                  scaling.empty() ? "rope_parameters" : "rope_scaling", theta, part,
                                  options.max_positions(), defaults, original);
  options.rope_theta(read.theta);
  for (LayerKind& kind : block.kinds()) {
    if (kind.rotates()) kind.rotary(RotaryOptions(read.options).part(read.part));
  }
}

void two_rotary_fields(ConfigFields& fields, TransformerOptions& options) {
  constexpr const char* kFull = "full_attention";
  constexpr const char* kSliding = "sliding_attention";
  constexpr double kTheta = 1e6, kLocalTheta = 1e4;
  BlockOptions& block = options.block();
  if (!fields.reading()) {
    const RotaryOptions &full = first_rotary(block, false), &sliding = first_rotary(block, true);
    const double local = sliding.theta() > 0 ? sliding.theta() : kLocalTheta;
    const int64_t positions = options.max_positions();
    fields.put("rope_parameters", {{kFull, written(full, options.rope_theta(), positions)},
                                   {kSliding, written(sliding, local, positions)}});
    fields.put("rope_theta", options.rope_theta());
    fields.put("rope_local_base_freq", local);
    return;
  }
  const Json parameters = object(fields.take("rope_parameters"), "rope_parameters");
  ConfigFields both = ConfigFields::reader(parameters, "rope_parameters.");
  Json full = object(both.take(kFull), absl::StrCat("rope_parameters.", kFull));
  const Json sliding = object(both.take(kSliding), absl::StrCat("rope_parameters.", kSliding));
  both.check_all_seen();
  full.update(object(fields.take("rope_scaling"), "rope_scaling"));
  double theta = kTheta, local = kLocalTheta;
  fields.number("rope_theta", &theta, theta);
  fields.number("rope_local_base_freq", &local, local);
  for (const Json& json : {full, sliding}) {
    if (json.contains("truncate") && json["truncate"] != true) {
      refuse_config("rope_parameters: truncate must be true, no other is computed here");
    }
  }
  const int64_t positions = options.max_positions();
  const Rotary global = read_rotary(full, absl::StrCat("rope_parameters.", kFull), theta, 1,
                                    positions, {}, 0),
               near = read_rotary(sliding, absl::StrCat("rope_parameters.", kSliding), local, 1,
                                  positions, {}, 0);
  options.rope_theta(global.theta);
  for (LayerKind& kind : block.kinds()) {
    kind.rotary(kind.window() > 0 ? RotaryOptions(near.options).theta(near.theta) : global.options);
  }
}

void window_field(ConfigFields& fields, TransformerOptions& options, int64_t otherwise) {
  fields.size("sliding_window", &options.block().kinds().front().window(), otherwise, /*null=*/0);
}

void layer_type_fields(ConfigFields& fields, TransformerOptions& options, int64_t window,
                       const std::function<bool(int64_t block)>& has_window) {
  const BlockOptions& block = options.block();
  if (!fields.reading()) {
    Json types = Json::array();
    for (int64_t i = 0; i < options.num_layers(); ++i) {
      types.push_back(block.kind_of(i).window() > 0 ? "sliding_attention" : "full_attention");
    }
    fields.put("layer_types", types);
    return;
  }
  const Json types = fields.take("layer_types");
  if (!types.is_null() &&
      (!types.is_array() || static_cast<int64_t>(types.size()) != options.num_layers())) {
    refuse_config(
        absl::StrCat("layer_types must be a list of num_hidden_layers texts, got ", shown(types)));
  }
  set_layers(options, [&](int64_t i) {
    bool sliding = types.is_null() && has_window(i);
    if (types.is_array()) {
      sliding = types[i] == "sliding_attention";
      if (!sliding && types[i] != "full_attention") {
        refuse_config(
            absl::StrCat("layer_types must be 'full_attention' and 'sliding_attention', "
                         "no other is computed here, got ",
                         shown(types[i])));
      }
    }
    if (sliding && window < 1) {
      refuse_config("layer_types has 'sliding_attention', but no sliding_window is in use");
    }
    return LayerKind(block.kind_of(i)).window(sliding ? window : 0);
  });
}

void sparse_layers(TransformerOptions& options,
                   const std::function<bool(int64_t block)>& is_sparse) {
  set_layers(options,
             [&](int64_t i) { return LayerKind(options.block().kind_of(i)).sparse(is_sparse(i)); });
}

void rotating_field(ConfigFields& fields, TransformerOptions& options) {
  const BlockOptions& block = options.block();
  int64_t interval = 4;
  if (!fields.reading()) {
    Json rotate = Json::array();
    for (int64_t i = 0; i < options.num_layers(); ++i) {
      rotate.push_back(block.kind_of(i).rotates() ? 1 : 0);
    }
    fields.put("no_rope_layers", rotate);
    fields.put("no_rope_layer_interval", interval);
    return;
  }
  fields.whole("no_rope_layer_interval", &interval, interval);
  const Json rotate = fields.take("no_rope_layers");
  if (rotate.is_null() && interval < 1) {
    refuse_config(absl::StrCat("no_rope_layer_interval must be positive, got ", interval));
  }
  if (!rotate.is_null() &&
      (!rotate.is_array() || static_cast<int64_t>(rotate.size()) < listed_layers(options))) {
    refuse_config(
        absl::StrCat("no_rope_layers must be a number for each layer, got ", shown(rotate)));
  }
  set_layers(options, [&](int64_t i) {
    bool rotates = rotate.is_array() || (i + 1) % interval != 0;
    if (rotate.is_array()) {
      if (rotate[i] != 0 && rotate[i] != 1) {
        refuse_config(
            absl::StrCat("no_rope_layers must be 1 (rotated) or 0, got ", shown(rotate[i])));
      }
      rotates = rotate[i] == 1;
    }
    return LayerKind().rotates(rotates);
  });
}

}  // namespace gpipe::models::internal
