#include "skip/skippable.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "skip/call.h"
#include "skip/context.h"
#include "skip/walk.h"
#include "text/shown.h"

namespace gpipe::skip {
namespace {

constexpr size_t kAbsent = static_cast<size_t>(-1);

// The search is linear, because lists of one or two names are faster to search than a table.
size_t index_of(const std::vector<std::string>& names, const std::string& name) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return i;
  }
  return kAbsent;
}

std::string list(const std::vector<std::string>& names) {
  if (names.empty()) return "none";
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + text::in_quotes(name);
  return text;
}

std::vector<Key> check_names(const std::vector<std::string>& names, const char* what) {
  std::vector<Key> keys;
  for (size_t i = 0; i < names.size(); ++i) {
    TORCH_CHECK_VALUE(!names[i].empty(), "a skip needs a name, but an empty one is declared among ",
                      what, " (", list(names), ")");
    TORCH_CHECK_VALUE(index_of(names, names[i]) == i, text::in_quotes(names[i]),
                      " is declared twice among ", what, " (", list(names),
                      "): declare each name once");
    keys.push_back({Namespace::common(), names[i]});
  }
  return keys;
}

void find(torch::nn::Module& module, const std::string& path,
          std::vector<const torch::nn::Module*>& parents, std::vector<internal::Found>& found) {
  if (auto* skippable = dynamic_cast<Skippable*>(&module)) {
    found.push_back({skippable, path, parents});
  }
  parents.push_back(&module);
  for (const auto& child : module.named_children()) {
    TORCH_CHECK_VALUE(child.value() != nullptr, "the submodule ",
                      text::in_quotes(path.empty() ? child.key() : path + "." + child.key()),
                      " is a null pointer; register a module there or leave it out");
    find(*child.value(), path.empty() ? child.key() : path + "." + child.key(), parents, found);
  }
  parents.pop_back();
}

}  // namespace

namespace internal {

std::vector<Found> find_skippables(torch::nn::Module& root) {
  std::vector<Found> found;
  std::vector<const torch::nn::Module*> parents;
  find(root, "", parents, found);
  return found;
}

}  // namespace internal

Skippable::Skippable(std::vector<std::string> stashes, std::vector<std::string> pops)
    : stashes_(std::move(stashes)),
      pops_(std::move(pops)),
      stash_keys_(check_names(stashes_, "the stashes")),
      pop_keys_(check_names(pops_, "the pops")) {}

void Skippable::isolate(const Namespace& ns) {
  for (auto& key : stash_keys_) key.ns = ns;
  for (auto& key : pop_keys_) key.ns = ns;
}

void Skippable::isolate(const Namespace& ns, const std::vector<std::string>& only) {
  // All names are checked before the first changes, so that an error leaves the layer as it was.
  for (const auto& name : only) key(name);
  for (const auto& name : only) {
    const size_t stash_index = index_of(stashes_, name);
    const size_t pop_index = index_of(pops_, name);
    if (stash_index != kAbsent) stash_keys_[stash_index].ns = ns;
    if (pop_index != kAbsent) pop_keys_[pop_index].ns = ns;
  }
}

const Key& Skippable::key(const std::string& name) const {
  const size_t stash_index = index_of(stashes_, name);
  if (stash_index != kAbsent) return stash_keys_[stash_index];
  const size_t pop_index = index_of(pops_, name);
  TORCH_CHECK_VALUE(pop_index != kAbsent, text::in_quotes(name),
                    " is not a skip of this layer, which stashes ", list(stashes_), " and pops ",
                    list(pops_));
  return pop_keys_[pop_index];
}

std::string Skippable::to_text() const {
  std::string text;
  if (!stashes_.empty()) text += "stash: " + list(stashes_);
  if (!pops_.empty()) text += (text.empty() ? "pop: " : "; pop: ") + list(pops_);
  return "Skippable(" + text + ")";
}

void Skippable::stash(const std::string& name, at::Tensor tensor) {
  const size_t index = index_of(stashes_, name);
  TORCH_CHECK(index != kAbsent, "a layer stashes ", text::in_quotes(name),
              ", which it does not declare: add it to the stashes given to Skippable (now ",
              list(stashes_), ")");
  if (CallScope* call = internal::context().call) call->note_stash(*this, index);
  Tracker::current().stash(stash_keys_[index], std::move(tensor));
}

at::Tensor Skippable::pop(const std::string& name) {
  const size_t index = index_of(pops_, name);
  TORCH_CHECK(index != kAbsent, "a layer pops ", text::in_quotes(name),
              ", which it does not declare: add it to the pops given to Skippable (now ",
              list(pops_), ")");
  if (CallScope* call = internal::context().call) call->note_pop(*this, index);
  return Tracker::current().pop(pop_keys_[index]);
}

std::vector<Skippable*> skippables_of(torch::nn::Module& layer) {
  std::vector<Skippable*> skippables;
  for (const auto& found : internal::find_skippables(layer)) {
    if (std::find(skippables.begin(), skippables.end(), found.skippable) == skippables.end()) {
      skippables.push_back(found.skippable);
    }
  }
  return skippables;
}

std::vector<const Skippable*> skippables_of(const torch::nn::Module& layer) {
  // The const_cast is safe, because the walk only reads. It is needed because a Module hands out
  // its children as mutable.
  const auto skippables = skippables_of(const_cast<torch::nn::Module&>(layer));
  return {skippables.begin(), skippables.end()};
}

// CallPlan and CallScope are defined here because layers and calls depend on each other.

CallPlan::CallPlan(const torch::nn::Module& layer) {
  for (auto& found : internal::find_skippables(const_cast<torch::nn::Module&>(layer))) {
    const bool known = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.skippable == found.skippable;
    });
    if (known) continue;
    entries_.push_back({found.skippable, found.parents.empty(), std::move(found.path), flags_,
                        found.skippable->stash_keys_, found.skippable->pop_keys_});
    flags_ +=
        static_cast<int64_t>(found.skippable->stashes().size() + found.skippable->pops().size());
  }
}

std::optional<std::string> CallPlan::moved_skip() const {
  for (const Entry& entry : entries_) {
    auto first_moved = [&](const std::vector<Key>& then,
                           const std::vector<Key>& now) -> std::optional<std::string> {
      const auto [was, is] = std::mismatch(then.begin(), then.end(), now.begin());
      if (was == then.end()) return std::nullopt;
      const std::string where = entry.path.empty() ? "" : " of its submodule " + entry.path;
      return "skip " + was->to_text() + where + " is now " + is->to_text();
    };
    if (auto moved = first_moved(entry.stash_keys, entry.skippable->stash_keys_)) return moved;
    if (auto moved = first_moved(entry.pop_keys, entry.skippable->pop_keys_)) return moved;
  }
  return std::nullopt;
}

CallScope::CallScope(const CallPlan& plan)
    : plan_(plan), former_(internal::context().call), done_(plan.flags_, false) {
  internal::context().call = this;
}

CallScope::~CallScope() { internal::context().call = former_; }

const CallPlan::Entry& CallScope::entry_of(const Skippable& skippable) const {
  for (const auto& entry : plan_.entries_) {
    if (entry.skippable == &skippable) return entry;
  }
  TORCH_CHECK(false, "a layer with ", skippable.to_text(),
              " ran inside another layer without being one of its registered submodules, so its "
              "skips have no route: give it to register_module in the constructor of that layer");
}

void CallScope::note_stash(const Skippable& skippable, size_t index) {
  bool& done = done_[entry_of(skippable).offset + index];
  TORCH_CHECK(!done, "skip ", skippable.stash_keys_[index].to_text(),
              " is stashed twice in one call of its layer, so the first tensor would be lost: ",
              "declare a second name for the second tensor");
  done = true;
}

void CallScope::note_pop(const Skippable& skippable, size_t index) {
  bool& done = done_[entry_of(skippable).offset + skippable.stashes_.size() + index];
  TORCH_CHECK(!done, "skip ", skippable.pop_keys_[index].to_text(),
              " is popped twice in one call of its layer: pop it once and keep the tensor");
  done = true;
}

void CallScope::finish() {
  std::string errors;
  for (const auto& entry : plan_.entries_) {
    const auto& stash_keys = entry.skippable->stash_keys_;
    const auto& pop_keys = entry.skippable->pop_keys_;
    const bool* stashed = done_.data() + entry.offset;
    const bool* popped = stashed + stash_keys.size();
    const bool* end = popped + pop_keys.size();
    if (!entry.required && std::find(stashed, end, true) == end) continue;
    const std::string where = entry.path.empty() ? "" : " by its submodule " + entry.path;
    for (size_t i = 0; i < stash_keys.size(); ++i) {
      if (stashed[i]) continue;
      errors +=
          "\n  " + stash_keys[i].to_text() + " is declared to be stashed" + where + ", but was not";
    }
    for (size_t i = 0; i < pop_keys.size(); ++i) {
      if (popped[i]) continue;
      errors +=
          "\n  " + pop_keys[i].to_text() + " is declared to be popped" + where + ", but was not";
    }
  }
  TORCH_CHECK(errors.empty(), "a layer did not do with its skips what it declares:", errors,
              "\nLet every call of forward() use each declared name once (an undefined tensor may "
              "be stashed), or do not declare it.");
}

}  // namespace gpipe::skip
