#include "gpipe/internal/call/hashing.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "gpipe/internal/tensors/bits_hash.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

// [number of the parameter]
using Hashes = std::map<int64_t, uint64_t>;

// Adds the hashes in `bytes`. Returns the number of a parameter that already has another hash, if
// any.
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
    found_by_all(name + ": the replicas have different values of " +
                 text::in_quotes(parameters[static_cast<size_t>(*differs)].key()) +
                 ", so they train different models: one of them has changed it alone (its "
                 "optimizer has other options, say, or did not step)");
  }
  BitsHash all;
  for (const auto& [parameter_number, hash] : hashes) {
    all.add(static_cast<uint64_t>(parameter_number));
    all.add(hash);
  }
  return all.text();
}

}  // namespace gpipe::internal
