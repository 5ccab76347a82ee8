#include "balance/costs/profile_file.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "balance/costs/parsed_json.h"
#include "balance/costs/profile_checks.h"
#include "command/files.h"

namespace gpipe::balance {
namespace {

// The type keeps the order of fields, because people read the layers' names before their figures.
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gpipe profile";
// Version 2 always says shared_inputs and whether autocast was enabled; version 1 may leave both
// out.
constexpr int64_t kVersion = 2;

// The fields of one JSON object, with the messages that name them.
class Fields {
 public:
  // `place` is "" or "layers[3]."
  Fields(const Json& object, std::string file, std::string place)
      : object_(object), file_(std::move(file)), place_(std::move(place)) {
    if (object_.is_object()) return;
    const std::string what =
        place_.empty() ? "it" : place_.substr(0, place_.size() - 1);  // without the dot
    throw std::invalid_argument(file_ + ": " + what + " is " + kind(object_) +
                                ", expected an object");
  }

  [[noreturn]] void refuse(const char* name, const Json& value, const char* expected) const {
    throw std::invalid_argument(file_ + ": " + place_ + name + " is " + kind(value) +
                                ", expected " + expected);
  }
  bool has(const char* name) const { return object_.contains(name); }
  const Json& get(const char* name) const {
    const auto found = object_.find(name);
    if (found != object_.end()) return *found;
    throw std::invalid_argument(file_ + ": " + place_ + name +
                                " is missing; the file is damaged or not a profile");
  }
  std::string text(const char* name) const {
    const Json& value = get(name);
    if (!value.is_string()) refuse(name, value, "a text");
    return value.get<std::string>();
  }
  bool flag(const char* name) const {
    const Json& value = get(name);
    if (!value.is_boolean()) refuse(name, value, "true or false");
    return value.get<bool>();
  }
  double number(const char* name) const {
    const Json& value = get(name);
    if (!value.is_number()) refuse(name, value, "a number");
    return value.get<double>();
  }
  int64_t count(const char* name) const { return count(name, get(name)); }
  std::vector<int64_t> counts(const char* name) const {
    std::vector<int64_t> result;
    for (const Json& each : list(name)) result.push_back(count(name, each));
    return result;
  }
  const Json& list(const char* name) const {
    const Json& value = get(name);
    if (!value.is_array()) refuse(name, value, "a list");
    return value;
  }

 private:
  int64_t count(const char* name, const Json& value) const {
    // An unsigned number beyond int64_t does not fit: it would wrap around.
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() ||
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!fits) refuse(name, value, "a whole number below 2^63");
    return value.get<int64_t>();
  }
  static std::string kind(const Json& value) {
    if (value.is_number()) return value.dump();
    return std::string(value.is_array() ? "an " : "a ") + value.type_name();
  }

  const Json& object_;
  std::string file_;
  std::string place_;
};

LayerProfile layer_from(const Fields& fields) {
  LayerProfile layer;
  layer.name = fields.text("name");
  layer.forward = fields.number("forward");
  layer.backward = fields.number("backward");
  layer.parameters = fields.count("parameters");
  layer.buffers = fields.count("buffers");
  layer.kept = fields.count("kept");
  layer.workspace = fields.count("workspace");
  layer.output = fields.count("output");
  if (fields.has("input_gradient") || fields.has("weight_gradient") || fields.has("waiting")) {
    layer.split = SplitBackward{fields.number("input_gradient"), fields.number("weight_gradient"),
                                fields.count("waiting")};
  }
  return layer;
}

std::string place(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "].";
}

}  // namespace

std::string to_json(const SavedProfile& saved) {
  const Profile& profile = saved.profile;
  check_profile(profile, "the profile cannot be saved: ");
  Json json = {{"format", kFormat},         {"version", profile.autocast ? kVersion : 1},
               {"units", "seconds, bytes"}, {"model", saved.model},
               {"device", profile.device},  {"batch_rows", profile.batch_rows},
               {"input", profile.input}};
  if (profile.autocast && !profile.autocast->empty()) json["autocast"] = *profile.autocast;
  if (profile.deferred_batch_norm) json["deferred_batch_norm"] = true;
  Json& layers = json["layers"] = Json::array();
  for (const LayerProfile& layer : profile.layers) {
    layers.push_back({{"name", layer.name},
                      {"forward", layer.forward},
                      {"backward", layer.backward},
                      {"parameters", layer.parameters},
                      {"buffers", layer.buffers},
                      {"kept", layer.kept},
                      {"workspace", layer.workspace},
                      {"output", layer.output}});
    if (!layer.split) continue;
    layers.back().update({{"input_gradient", layer.split->input},
                          {"weight_gradient", layer.split->weight},
                          {"waiting", layer.split->waiting}});
  }
  Json& skips = json["skips"] = Json::array();
  for (const SkipProfile& skip : profile.skips) {
    skips.push_back({{"from", skip.from}, {"to", skip.to}, {"bytes", skip.bytes}});
  }
  if (profile.shared_inputs) json["shared_inputs"] = *profile.shared_inputs;
  return json_text(json);
}

SavedProfile profile_from_json(const std::string& text, const std::string& file) {
  const Json json = parsed_json(text, file);
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    throw std::invalid_argument(file + " is JSON, but not a profile: \"format\" is not \"" +
                                kFormat + "\"");
  }
  const Fields fields(json, file, "");
  const int64_t version = fields.count("version");
  if (version < 1 || version > kVersion) {
    throw std::invalid_argument(file + " has version " + std::to_string(version) +
                                ", this program reads version 1 to " + std::to_string(kVersion) +
                                "; measure the profile again");
  }
  SavedProfile saved;
  saved.model = fields.text("model");
  saved.profile.device = fields.text("device");
  if (fields.has("autocast")) {
    saved.profile.autocast = fields.text("autocast");
  } else if (version == 1) {
    saved.profile.autocast.reset();
  }
  saved.profile.deferred_batch_norm =
      fields.has("deferred_batch_norm") && fields.flag("deferred_batch_norm");
  saved.profile.batch_rows = fields.count("batch_rows");
  saved.profile.input = fields.count("input");
  for (const Json& layer : fields.list("layers")) {
    saved.profile.layers.push_back(
        layer_from(Fields(layer, file, place("layers", saved.profile.layers.size()))));
  }
  for (const Json& skip : fields.list("skips")) {
    const Fields of_skip(skip, file, place("skips", saved.profile.skips.size()));
    saved.profile.skips.push_back(
        {of_skip.count("from"), of_skip.count("to"), of_skip.count("bytes")});
  }
  if (fields.has("shared_inputs")) saved.profile.shared_inputs = fields.counts("shared_inputs");
  check_profile(saved.profile, file + ": ");
  return saved;
}

void save_profile(const std::string& path, const SavedProfile& saved) {
  command::write_file_atomically(path, to_json(saved));
}

SavedProfile load_profile(const std::string& path) {
  return profile_from_json(command::read_given_file(path), path);
}

}  // namespace gpipe::balance
