#include "skip/tracker.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "skip/context.h"
#include "text/shown.h"

namespace gpipe::skip {

namespace internal {

Context& context() {
  thread_local Context context;
  return context;
}

}  // namespace internal

std::string Key::to_text() const {
  std::string text = text::in_quotes(name);
  if (ns != Namespace::common()) text += " (namespace " + std::to_string(ns.id()) + ")";
  return text;
}

void Tracker::stash(const Key& key, at::Tensor tensor) {
  table_.insert_or_assign(key, std::move(tensor));
}

at::Tensor Tracker::pop(const Key& key) {
  auto tensor = take(key);
  TORCH_CHECK(tensor.has_value(), "skip ", key.to_text(),
              " is not stashed: no layer stashed it before this pop, or it was popped already. ",
              "A layer that runs earlier must stash this name in the same namespace; waiting are: ",
              to_text(), ".");
  return *std::move(tensor);
}

std::optional<at::Tensor> Tracker::take(const Key& key) {
  auto found = table_.find(key);
  if (found == table_.end()) return std::nullopt;
  std::optional<at::Tensor> tensor(std::move(found->second));
  table_.erase(found);
  return tensor;
}

std::string Tracker::to_text() const {
  if (table_.empty()) return "none";
  std::vector<Key> keys;
  for (const auto& entry : table_) keys.push_back(entry.first);
  std::sort(keys.begin(), keys.end());
  std::string text;
  for (const auto& key : keys) text += (text.empty() ? "" : ", ") + key.to_text();
  return text;
}

Tracker& Tracker::current() {
  if (Tracker* tracker = internal::context().tracker) return *tracker;
  thread_local Tracker own;
  return own;
}

TrackerScope::TrackerScope(Tracker& tracker)
    : former_tracker_(internal::context().tracker), former_call_(internal::context().call) {
  internal::context() = {&tracker, nullptr};
}

TrackerScope::~TrackerScope() { internal::context() = {former_tracker_, former_call_}; }

void Scope::finish() const {
  TORCH_CHECK(tracker_.size() == 0, "skips were stashed and never popped: ", tracker_.to_text(),
              ". Let a later layer pop each of them.");
}

}  // namespace gpipe::skip
