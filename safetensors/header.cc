#include "safetensors/header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "text/shown.h"

namespace gpipe::safetensors {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

[[noreturn]] void refuse(const std::string& reason) { throw std::runtime_error(reason); }

// Takes JSON's tokens one by one and accepts only what the format has. So a document of any depth,
// or with other values, is refused before it is built in memory.
class Parser : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header take() { return std::move(header_); }

  bool null() override {
    // Metadata that is null counts as an empty object.
    if (where_ == Where::kMetadata) return leave(Where::kTop);
    unexpected("null");
  }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    unexpected("a number that is not whole");
  }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (!in_array_) unexpected("a number");
    if (value > static_cast<uint64_t>(kMost)) {
      refuse("tensor " + text::quoted(name_) + " has the number " + std::to_string(value) +
             ", which is too large");
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (where_ == Where::kType) {
      entry_.type = std::move(value);
      return leave(Where::kTensor);
    }
    if (where_ != Where::kText) unexpected("a text");
    if (!header_.metadata.emplace(std::move(key_), std::move(value)).second) {
      refuse("__metadata__ has a key twice");
    }
    return leave(Where::kTexts);
  }

  bool start_object(size_t) override {
    switch (where_) {
      case Where::kBefore:
        return leave(Where::kTop);
      case Where::kMetadata:
        return leave(Where::kTexts);
      case Where::kEntry:
        entry_ = {};
        has_type_ = has_shape_ = has_offsets_ = false;
        return leave(Where::kTensor);
      default:
        unexpected("an object");
    }
  }

  bool end_object() override {
    if (where_ == Where::kTexts) return leave(Where::kTop);
    if (where_ != Where::kTensor) return leave(Where::kBehind);
    for (const auto& [has, field] : {std::make_pair(has_type_, "dtype"),
                                     {has_shape_, "shape"},
                                     {has_offsets_, "data_offsets"}}) {
      if (!has) refuse("tensor " + text::quoted(name_) + " has no " + field);
    }
    if (!header_.tensors.emplace(name_, std::move(entry_)).second) {
      refuse("there are two tensors " + text::quoted(name_));
    }
    return leave(Where::kTop);
  }

  bool key(std::string& value) override {
    if (where_ == Where::kTop) {
      if (value == "__metadata__") {
        if (std::exchange(has_metadata_, true)) refuse("__metadata__ is there twice");
        return leave(Where::kMetadata);
      }
      name_ = std::move(value);
      return leave(Where::kEntry);
    }
    if (where_ == Where::kTexts) {
      key_ = std::move(value);
      return leave(Where::kText);
    }
    if (value == "dtype") return field(&has_type_, "dtype", Where::kType);
    if (value == "shape") return field(&has_shape_, "shape", Where::kShape);
    if (value == "data_offsets") return field(&has_offsets_, "data_offsets", Where::kOffsets);
    refuse("tensor " + text::quoted(name_) + " has the field " + text::quoted(value) +
           ", which the format does not have");
  }

  bool start_array(size_t) override {
    if ((where_ != Where::kShape && where_ != Where::kOffsets) || std::exchange(in_array_, true)) {
      unexpected("a list");
    }
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    if (where_ == Where::kShape) {
      entry_.shape = numbers_;
    } else {
      if (numbers_.size() != 2) {
        refuse("tensor " + text::quoted(name_) + " has " + std::to_string(numbers_.size()) +
               " data_offsets instead of two");
      }
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    return leave(Where::kTensor);
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    // The library's message begins with a prefix in brackets, which is left out.
    const std::string text = error.what();
    const size_t colon = text.find(": ");
    refuse("the header is not JSON at byte " + std::to_string(position) +
           (colon == std::string::npos ? "" : ": " + text::shown(text.substr(colon + 2, 200))));
  }

 private:
  enum class Where {
    kBefore,
    kTop,
    kMetadata,
    kTexts,
    kText,
    kEntry,
    kTensor,
    kType,
    kShape,
    kOffsets,
    kBehind
  };

  bool leave(Where to) {
    where_ = to;
    return true;
  }

  bool field(bool* has, const char* name, Where to) {
    if (std::exchange(*has, true)) refuse("tensor " + text::quoted(name_) + " has two " + name);
    return leave(to);
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (where_) {
      case Where::kBefore:
        refuse("the header is " + what + ", not an object");
      case Where::kMetadata:
        refuse("__metadata__ is " + what + ", not an object of texts");
      case Where::kText:
        refuse("__metadata__ has " + what + " where a text belongs");
      case Where::kType:
        refuse("tensor " + text::quoted(name_) + " has " + what + " as its dtype");
      case Where::kShape:
        refuse("tensor " + text::quoted(name_) + " has " + what + " in its shape");
      case Where::kOffsets:
        refuse("tensor " + text::quoted(name_) + " has " + what + " in its data_offsets");
      default:
        refuse("tensor " + text::quoted(name_) + " is " + what + ", not an object");
    }
  }

  Header header_;
  Where where_ = Where::kBefore;
  bool has_metadata_ = false, in_array_ = false;
  std::string name_, key_;
  Entry entry_;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<int64_t> numbers_;
};

// Checks that the tensors cover the data without holes or overlaps: each begins where the one
// before it ends.
void check_cover(const Header& header, int64_t data_bytes) {
  using Named = std::pair<const std::string, Entry>;
  std::vector<const Named*> order;
  order.reserve(header.tensors.size());
  for (const Named& tensor : header.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return std::make_pair(a->second.begin, a->second.end) <
           std::make_pair(b->second.begin, b->second.end);
  });
  int64_t covered = 0;
  for (const Named* tensor : order) {
    const Entry& entry = tensor->second;
    if (entry.begin != covered) {
      refuse(
          "tensor " + text::quoted(tensor->first) + " begins at byte " +
          std::to_string(entry.begin) +
          (entry.begin > covered ? ", behind a hole that begins at " : ", within what ends at ") +
          std::to_string(covered));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    refuse("the tensors are " + std::to_string(covered) + " bytes, the file has " +
           std::to_string(data_bytes) + " behind its header: " +
           (covered < data_bytes
                ? std::to_string(data_bytes - covered) +
                      " trailing bytes that no tensor has; cut them off, or write the file again"
                : std::to_string(covered - data_bytes) +
                      " are missing, as where a download broke off"));
  }
}

// The index of a type in element_types(); the number of types if it is not one of them.
size_t rank_of(const std::string& type) {
  const auto& types = element_types();
  const auto found = std::find_if(types.begin(), types.end(),
                                  [&](const ElementType& known) { return known.name == type; });
  return static_cast<size_t>(found - types.begin());
}

}  // namespace

const std::vector<ElementType>& element_types() {
  static const std::vector<ElementType> types = {
      {"U64", 8},     {"I64", 8},         {"F64", 8},         {"C64", 8},     {"F32", 4},
      {"U32", 4},     {"I32", 4},         {"BF16", 2},        {"F16", 2},     {"U16", 2},
      {"I16", 2},     {"F8_E5M2FNUZ", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E8M0", 1}, {"F8_E4M3", 1},
      {"F8_E5M2", 1}, {"I8", 1},          {"U8", 1},          {"BOOL", 1},
  };
  return types;
}

int64_t bytes_of(const std::string& type, const std::vector<int64_t>& shape) {
  const size_t rank = rank_of(type);
  if (rank == element_types().size()) {
    std::string known;
    for (const ElementType& each : element_types()) {
      known += (known.empty() ? "" : ", ") + std::string(each.name);
    }
    refuse("the type " + text::quoted(type) + " is not one of those that can be read: " + known);
  }
  // Sizes of 0 count as 1 in this product, so that the other sizes are checked, too: LibTorch
  // multiplies them for its strides.
  int64_t bytes = element_types()[rank].bytes;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) refuse("the size " + std::to_string(size) + " is negative");
    empty = empty || size == 0;
    if (size > 0 && bytes > kMost / size) refuse("the shape has more elements than can be counted");
    bytes *= std::max<int64_t>(size, 1);
  }
  return empty ? 0 : bytes;
}

Header parse_header(std::string_view text, int64_t data_bytes) {
  const size_t valid = text::utf8_bytes(text);
  if (valid < text.size()) {
    refuse("the header is not UTF-8: its byte " + std::to_string(valid) + " is " +
           text::shown(text.substr(valid, 1)) + ", where no character begins");
  }
  // A zero byte is refused, because the JSON library would take it for the end of the text.
  if (text.find('\0') != std::string_view::npos) refuse("the header has a zero byte");
  Parser parser;
  nlohmann::json::sax_parse(text.begin(), text.end(), &parser);
  Header header = parser.take();
  for (const auto& [name, entry] : header.tensors) {
    if (entry.end < entry.begin) {
      refuse("tensor " + text::quoted(name) + " ends at byte " + std::to_string(entry.end) +
             ", before it begins at " + std::to_string(entry.begin));
    }
    int64_t bytes = 0;
    try {
      bytes = bytes_of(entry.type, entry.shape);
    } catch (const std::runtime_error& error) {
      refuse("tensor " + text::quoted(name) + ": " + error.what());
    }
    if (entry.end - entry.begin != bytes) {
      refuse("tensor " + text::quoted(name) + " has " + std::to_string(entry.end - entry.begin) +
             " bytes, its type and shape ask for " + std::to_string(bytes));
    }
  }
  check_cover(header, data_bytes);
  return header;
}

std::string to_text(const Header& header) {
  const auto quoted = [](const std::string& text) {
    try {
      return nlohmann::json(text).dump();
    } catch (const nlohmann::json::type_error&) {  // a message with these bytes would not be UTF-8,
                                                   // either
      throw std::invalid_argument("a name or text of " + std::to_string(text.size()) +
                                  " bytes is not UTF-8: " + text::quoted(text) +
                                  "; safetensors has no other names");
    }
  };
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : header.metadata) {
      if (text.back() != '{') text += ",";
      text += quoted(key) + ":" + quoted(value);
    }
    text += "}";
  }
  // Tensors are sorted by their beginnings and then by their ends, because a tensor without
  // elements begins where the next one begins.
  using Named = std::pair<const std::string, Entry>;
  std::vector<const Named*> order;
  for (const Named& tensor : header.tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return std::make_tuple(a->second.begin, a->second.end, rank_of(a->second.type)) <
           std::make_tuple(b->second.begin, b->second.end, rank_of(b->second.type));
  });
  for (const auto* tensor : order) {
    if (text.back() != '{') text += ",";
    const Entry& entry = tensor->second;
    text += quoted(tensor->first) + ":{\"dtype\":" + quoted(entry.type) +
            ",\"shape\":" + nlohmann::json(entry.shape).dump() +
            ",\"data_offsets\":" + nlohmann::json({entry.begin, entry.end}).dump() + "}";
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace gpipe::safetensors
