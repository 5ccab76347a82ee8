#include "balance/costs/parsed_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "text/shown.h"

namespace gpipe::balance {
namespace {

using Json = nlohmann::ordered_json;

// Reads a text until its first error and knows the field that it is in.
class FieldOfError final : public nlohmann::json_sax<Json> {
 public:
  // The name of the field, like "layers[1].forward".
  std::string field() const {
    std::string result;
    for (const Level& level : levels_) {
      if (level.is_list) {
        absl::StrAppend(&result, "[", level.index, "]");
      } else {
        absl::StrAppend(&result, result.empty() ? "" : ".", text::shown(level.key));
      }
    }
    return result;
  }
  // The token that was read last.
  const std::string& token() const { return token_; }

  bool null() override { return after_value(); }
  bool boolean(bool) override { return after_value(); }
  bool number_integer(number_integer_t) override { return after_value(); }
  bool number_unsigned(number_unsigned_t) override { return after_value(); }
  bool number_float(number_float_t, const string_t&) override { return after_value(); }
  bool string(string_t&) override { return after_value(); }
  bool binary(binary_t&) override { return after_value(); }
  bool start_object(size_t) override { return begin(false); }
  bool end_object() override { return end(); }
  bool start_array(size_t) override { return begin(true); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    levels_.back().key = name;
    return true;
  }
  bool parse_error(size_t, const std::string& token, const Json::exception&) override {
    token_ = token;
    return false;
  }

 private:
  struct Level {
    bool is_list = false;
    int64_t index = 0;
    std::string key;
  };

  bool begin(bool is_list) {
    levels_.push_back({is_list, 0, ""});
    return true;
  }
  bool end() {
    levels_.pop_back();
    return after_value();
  }
  bool after_value() {
    if (!levels_.empty()) ++levels_.back().index;
    return true;
  }

  std::vector<Level> levels_;
  std::string token_;
};

}  // namespace

Json parsed_json(const std::string& text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw std::invalid_argument(absl::StrCat(file, " is not valid JSON near byte ",
                                             std::min(error.byte, text.size()), " of ",
                                             text.size()));
  } catch (const Json::exception&) {  // a number that does not fit in a double
    FieldOfError reader;
    (void)Json::sax_parse(text, &reader);
    const std::string field = reader.field();
    throw std::invalid_argument(absl::StrCat(
        file, ": ", field.empty() ? "it" : field, " is ", text::shown(reader.token()),
        ", which does not fit in a double; expected a number of at most about 1.8e308"));
  }
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace gpipe::balance
