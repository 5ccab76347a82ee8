// ConfigFields: the fields of a JSON object. One call for each field reads it into a value, or
// writes it from that value, so that reading and writing cannot differ.
#ifndef MODELS_FAMILIES_CONFIG_FIELDS_H_
#define MODELS_FAMILIES_CONFIG_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::models::internal {

// Throws std::runtime_error: "config.json: " and the reason.
[[noreturn]] void refuse_config(const std::string& reason);

// A value as text for a message: JSON, cut off if it is long.
std::string shown(const nlohmann::json& value);

// When reading, each function takes a field out of an object and sets `value`: to `otherwise` if
// there is no such field, to `null` if the field is null (refused if no `null` is given), else to
// the field's value. No field is read twice, and fields that were not asked for are refused at the
// end. When writing, it sets the field to the value; a value that equals `null` becomes null.
//
// Throws std::runtime_error (refuse_config) with the field, its value and what it must be.
class ConfigFields {
 public:
  using Json = nlohmann::json;

  static ConfigFields reader(Json json, std::string prefix = "");
  static ConfigFields writer();

  bool reading() const { return reading_; }

  void whole(const char* name, int64_t* value, int64_t otherwise,
             std::optional<int64_t> null = std::nullopt);
  // Like whole(), for a number that must be above 0 if the field is there. The caller's `otherwise`
  // and `null` may be 0 or less.
  void size(const char* name, int64_t* value, int64_t otherwise,
            std::optional<int64_t> null = std::nullopt);
  void number(const char* name, double* value, double otherwise,
              std::optional<double> null = std::nullopt);
  void flag(const char* name, bool* value, bool otherwise, std::optional<bool> null = std::nullopt);
  void text(const char* name, std::string* value, const std::string& otherwise);

  // Reading: returns the field as it is, or null if there is none. The field counts as asked for.
  Json take(const char* name);
  bool has(const char* name) const { return json_.contains(name); }
  // Writing: sets the field to the value.
  void put(const char* name, Json value) { json_[name] = std::move(value); }

  // Reading: refuses any value but these. The field may be missing.
  void expect(const char* name, std::initializer_list<Json> values);
  // Reading: leaves these fields out. They do not change what is computed; the caller says why.
  void ignore(std::initializer_list<const char*> names);
  void ignore(const std::vector<const char*>& names);
  void ignore_beginning(const std::string& beginning);

  // Reading, last: refuses fields that were not asked for.
  void check_all_seen() const;
  // Reading: the fields that have been used, and not ignored.
  const std::set<std::string>& used() const { return used_; }

  const Json& json() const { return json_; }

 private:
  ConfigFields(Json json, std::string prefix, bool reading)
      : json_(std::move(json)), prefix_(std::move(prefix)), reading_(reading) {}
  // Returns null if there is no such field; otherwise the field counts as used.
  const Json* find(const char* name);
  [[noreturn]] void mistyped(const char* name, const Json& value, const char* expected) const;

  Json json_;
  std::string prefix_;
  bool reading_;
  std::set<std::string> used_, ignored_;
};

}  // namespace gpipe::models::internal

#endif  // MODELS_FAMILIES_CONFIG_FIELDS_H_
