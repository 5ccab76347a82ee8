// parsed_json: the JSON of a file that somebody gave, with errors that name the file. json_text:
// the text of a file that is written.
#ifndef BALANCE_COSTS_PARSED_JSON_H_
#define BALANCE_COSTS_PARSED_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace gpipe::balance {

// Throws std::invalid_argument that begins with `file`: with the byte for a text that is not JSON,
// and with the field for a number that does not fit in a double, such as 1e999.
nlohmann::ordered_json parsed_json(const std::string& text, const std::string& file);

// The text of a file, a field in each line. Bytes of names that are not UTF-8 become the
// replacement character.
std::string json_text(const nlohmann::ordered_json& json);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PARSED_JSON_H_
