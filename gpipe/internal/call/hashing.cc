#include "gpipe/internal/call/hashing.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

namespace gpipe::internal {
namespace {

// FNV-1a with words of eight bytes instead of bytes, so that gigabytes take a second; a rotation
// brings high bits down, which the multiplication alone would not.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    const auto* position = static_cast<const unsigned char*>(data);
    for (; bytes >= sizeof(uint64_t); position += sizeof(uint64_t), bytes -= sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, position, sizeof word);
      add(word);
    }
    uint64_t rest = 0;
    if (bytes > 0) std::memcpy(&rest, position, bytes);  // a tensor without elements has no memory
    add(rest);
    add(bytes);
  }
  void add(uint64_t word) {
    value_ = (value_ ^ word) * 1099511628211U;
    value_ = value_ << 29 | value_ >> 35;
  }
  uint64_t value() const { return value_; }
  std::string text() const {
    char text[32];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value_));
    return text;
  }

 private:
  uint64_t value_ = 14695981039346656037U;
};

// By the number of the parameter.
using Hashes = std::map<int64_t, uint64_t>;

// Returns the number of a parameter that is there already, with another hash.
std::optional<int64_t> add(const std::string& bytes, Hashes& hashes) {
  std::array<uint64_t, 2> entry{};
  for (size_t k = 0; k < bytes.size(); k += sizeof entry) {
    std::memcpy(entry.data(), bytes.data() + k, sizeof entry);
    const auto number = static_cast<int64_t>(entry[0]);
    if (hashes.emplace(number, entry[1]).first->second != entry[1]) return number;
  }
  return std::nullopt;
}

}  // namespace

uint64_t hash_of(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  const std::string form = name + c10::str(values.dtype(), values.sizes());
  Hash hash;
  hash.add(form.data(), form.size());
  hash.add(values.const_data_ptr(), values.nbytes());
  return hash.value();
}

std::string hash_of(const std::string& text) {
  Hash hash;
  hash.add(text.data(), text.size());
  return hash.text();
}

std::string hash_parameters(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                            Processes* processes, const std::string& name) {
  std::string own;
  int64_t number = 0;
  for (const auto& parameter : parameters) {
    const int64_t parameter_number = number++;
    if (!parameter.value().defined() || parameter.value().is_meta()) continue;
    const std::array<uint64_t, 2> entry{static_cast<uint64_t>(parameter_number),
                                        hash_of(parameter.key(), parameter.value())};
    own.append(reinterpret_cast<const char*>(entry.data()), sizeof entry);
  }
  const std::vector<std::string> of_all =
      processes == nullptr ? std::vector<std::string>{own} : exchange_long(*processes, name, own);
  Hashes hashes;
  for (const std::string& bytes : of_all) {
    const std::optional<int64_t> differs = add(bytes, hashes);
    if (!differs) continue;
    found_by_all(name + ": the replicas have different values of '" +
                 parameters[static_cast<size_t>(*differs)].key() +
                 "', so they train different models: one of them has changed it alone (its "
                 "optimizer has other options, say, or did not step)");
  }
  Hash all;
  for (const auto& [parameter_number, hash] : hashes) {
    all.add(static_cast<uint64_t>(parameter_number));
    all.add(hash);
  }
  return all.text();
}

}  // namespace gpipe::internal
