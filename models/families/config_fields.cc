#include "models/families/config_fields.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace gpipe::models::internal {
namespace {

using Json = nlohmann::json;

bool is_whole(const Json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() ||
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

}  // namespace

void refuse_config(const std::string& reason) {
  throw std::runtime_error(absl::StrCat("config.json: ", reason));
}

std::string shown(const Json& value) {
  constexpr size_t kMost = 40;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > kMost ? absl::StrCat(text.substr(0, kMost), "...") : text;
}

ConfigFields ConfigFields::reader(Json json, std::string prefix) {
  return {std::move(json), std::move(prefix), true};
}

ConfigFields ConfigFields::writer() { return {Json::object(), "", false}; }

const Json* ConfigFields::find(const char* name) {
  used_.insert(name);
  const auto found = json_.find(name);
  return found == json_.end() ? nullptr : &*found;
}

void ConfigFields::mistyped(const char* name, const Json& value, const char* expected) const {
  refuse_config(absl::StrCat(prefix_, name, " must be ", expected, ", got ", shown(value)));
}

void ConfigFields::whole(const char* name, int64_t* value, int64_t otherwise,
                         std::optional<int64_t> null) {
  if (!reading_) {
    json_[name] = null == *value ? Json() : Json(*value);
    return;
  }
  const Json* const found = find(name);
  if (found != nullptr && !is_whole(*found) && !(found->is_null() && null.has_value())) {
    mistyped(name, *found, "a whole number");
  }
  *value = found == nullptr ? otherwise : found->is_null() ? *null : found->get<int64_t>();
  // If a value stands for null, a config must not have it as a number, because it would be written
  // back as null.
  if (found != nullptr && !found->is_null() && null == *value) {
    mistyped(name, *found, "a positive whole number or null");
  }
}

void ConfigFields::size(const char* name, int64_t* value, int64_t otherwise,
                        std::optional<int64_t> null) {
  whole(name, value, otherwise, null);
  const auto found = json_.find(name);
  if (!reading_ || found == json_.end() || found->is_null() || *value > 0) return;
  mistyped(name, *found,
           null.has_value() ? "a positive whole number or null" : "a positive whole number");
}

void ConfigFields::number(const char* name, double* value, double otherwise,
                          std::optional<double> null) {
  if (!reading_) {
    json_[name] = null == *value ? Json() : Json(*value);
    return;
  }
  const Json* const found = find(name);
  if (found != nullptr && !found->is_number() && !(found->is_null() && null.has_value())) {
    mistyped(name, *found, "a number");
  }
  *value = found == nullptr ? otherwise : found->is_null() ? *null : found->get<double>();
  if (found != nullptr && !found->is_null() && null == *value) {
    mistyped(name, *found, "a positive number or null");
  }
}

void ConfigFields::flag(const char* name, bool* value, bool otherwise, std::optional<bool> null) {
  if (!reading_) {
    json_[name] = *value;
    return;
  }
  const Json* const found = find(name);
  if (found != nullptr && !found->is_boolean() && !(found->is_null() && null.has_value())) {
    mistyped(name, *found, "true or false");
  }
  *value = found == nullptr ? otherwise : found->is_null() ? *null : found->get<bool>();
}

void ConfigFields::text(const char* name, std::string* value, const std::string& otherwise) {
  if (!reading_) {
    json_[name] = *value;
    return;
  }
  const Json* const found = find(name);
  if (found != nullptr && !found->is_string()) mistyped(name, *found, "a text");
  *value = found == nullptr ? otherwise : found->get<std::string>();
}

Json ConfigFields::take(const char* name) {
  const Json* const found = find(name);
  return found == nullptr ? Json() : *found;
}

void ConfigFields::expect(const char* name, std::initializer_list<Json> values) {
  if (!reading_) return;
  const Json* const found = find(name);
  std::string allowed;
  for (const Json& value : values) {
    if (found == nullptr || *found == value) return;
    absl::StrAppend(&allowed, allowed.empty() ? "" : " or ", value.dump());
  }
  refuse_config(absl::StrCat(prefix_, name, " must be ", allowed,
                             ", no other is computed here, got ", shown(*found)));
}

void ConfigFields::ignore(std::initializer_list<const char*> names) {
  ignored_.insert(names.begin(), names.end());
}

void ConfigFields::ignore(const std::vector<const char*>& names) {
  ignored_.insert(names.begin(), names.end());
}

void ConfigFields::ignore_beginning(const std::string& beginning) {
  for (const auto& item : json_.items()) {
    if (item.key().rfind(beginning, 0) == 0) ignored_.insert(item.key());
  }
}

void ConfigFields::check_all_seen() const {
  for (const auto& item : json_.items()) {
    if (used_.count(item.key()) > 0 || ignored_.count(item.key()) > 0) continue;
    refuse_config(absl::StrCat(
        "the field '", prefix_, item.key(),
        "' is not known here; remove it if it leaves the model's outputs as they are"));
  }
}

}  // namespace gpipe::models::internal
