#include "skip/verify.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "skip/skippable.h"
#include "skip/walk.h"

namespace gpipe::skip {
namespace {

// Whether the order of registration says which of the two layers runs first.
bool has_known_order(const internal::Found& a, const internal::Found& b) {
  size_t depth = 0;
  while (depth < a.parents.size() && depth < b.parents.size() &&
         a.parents[depth] == b.parents[depth]) {
    ++depth;
  }
  // A layer that contains the other layer may stash or pop before or after the other layer runs.
  auto is_around = [depth](const internal::Found& outer, const internal::Found& inner) {
    return depth == outer.parents.size() && depth < inner.parents.size() &&
           dynamic_cast<const Skippable*>(inner.parents[depth]) == outer.skippable;
  };
  if (is_around(a, b) || is_around(b, a)) return false;
  return dynamic_cast<const torch::nn::SequentialImpl*>(a.parents[depth - 1]) != nullptr;
}

}  // namespace

void verify_skippables(const torch::nn::Sequential& module) {
  TORCH_CHECK_VALUE(!module.is_empty(),
                    "verify_skippables needs a Sequential, got an empty holder");
  const auto all = internal::find_skippables(*module.ptr());
  TORCH_CHECK_TYPE(all.empty() || !all.front().parents.empty(),
                   "the model itself is a layer with skips, but only the layers in it are called: "
                   "give the skips to one of them");

  // A pop that comes before its stash is judged after this pass, when all stashes are known.
  std::unordered_map<Key, const internal::Found*> stashed;
  std::unordered_map<Key, const internal::Found*> popped;
  std::vector<std::pair<Key, const internal::Found*>> early_pops;
  std::string errors;
  auto complain = [&errors](const internal::Found& found, const std::string& text) {
    errors += "\n  child " + found.path + " " + text;
  };

  for (const auto& found : all) {
    const Skippable& layer = *found.skippable;
    for (const auto& name : layer.stashes()) {
      const Key& key = layer.key(name);
      bool both = false;
      for (const auto& pop : layer.pops()) both = both || pop == name;
      if (both) {
        complain(found, "both stashes and pops " + key.to_text());
        // Both ends count as seen; otherwise the same mistake would be reported three times.
        stashed.emplace(key, &found);
        popped.emplace(key, &found);
        continue;
      }
      const auto inserted = stashed.emplace(key, &found);
      if (!inserted.second) {
        complain(found, "stashes " + key.to_text() + " again, which child " +
                            inserted.first->second->path + " stashes already");
      }
    }
    for (const auto& name : layer.pops()) {
      bool both = false;
      for (const auto& stash : layer.stashes()) both = both || stash == name;
      if (both) continue;
      const Key& key = layer.key(name);
      const auto inserted = popped.emplace(key, &found);
      if (!inserted.second) {
        complain(found, "pops " + key.to_text() + " again, which child " +
                            inserted.first->second->path + " pops already");
      } else if (stashed.count(key) == 0) {
        early_pops.emplace_back(key, &found);
      }
    }
  }
  for (const auto& [key, pop] : early_pops) {
    const auto stash = stashed.find(key);
    if (stash == stashed.end()) {
      complain(*pop, "pops " + key.to_text() +
                         ", which no layer stashes, or only one inside another layer that has not "
                         "registered it (register_module)");
    } else if (has_known_order(*stash->second, *pop)) {
      complain(*pop,
               "pops " + key.to_text() + " before child " + stash->second->path + " stashes it");
    }
  }
  for (const auto& found : all) {
    for (const auto& name : found.skippable->stashes()) {
      const Key& key = found.skippable->key(name);
      if (popped.count(key) == 0) {
        complain(found, "stashes " + key.to_text() + ", which no layer pops");
      }
    }
  }
  TORCH_CHECK_TYPE(errors.empty(), "the skips of the model do not pair up:", errors,
                   "\nEach name must be stashed by one layer and popped by one later layer; to use "
                   "a name for several pairs, isolate() each pair in a Namespace of its own.");
}

}  // namespace gpipe::skip
