#include "gpipe/internal/call/hashing.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/bits_hash.h"
#include "gpipe/runtime/bytes.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

using Hashes = std::vector<std::pair<uint64_t, uint64_t>>;  // by the number of the parameter

}  // namespace

std::string hash_parameters(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                            Processes* processes, const std::string& name) {
  Hashes own;
  uint64_t number = 0;
  for (const auto& parameter : parameters) {
    const uint64_t own_number = number++;
    if (!parameter.value().defined() || parameter.value().is_meta()) continue;
    own.emplace_back(own_number, hash_of(parameter.key(), parameter.value()));
  }
  std::vector<std::string> of_all{to_bytes(own)};
  if (processes != nullptr) of_all = exchange_long(*processes, name, of_all.front());
  std::map<uint64_t, uint64_t> hashes;
  for (const std::string& bytes : of_all) {
    for (const auto& [parameter, hash] : from_bytes<Hashes>(bytes, "the hashes of parameters")) {
      if (hashes.emplace(parameter, hash).first->second == hash) continue;
      found_by_all(name + ": the replicas have different values of " +
                   text::in_quotes(parameters[parameter].key()) +
                   ", so they train different models: one of them has changed it alone (its "
                   "optimizer has other options, say, or did not step)");
    }
  }
  BitsHash all;
  for (const auto& [parameter, hash] : hashes) {
    all.add(parameter);
    all.add(hash);
  }
  return all.text();
}

}  // namespace gpipe::internal
