// Tracker: the table in which stashed tensors wait until they are popped.
#ifndef SKIP_TRACKER_H_
#define SKIP_TRACKER_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "skip/namespace.h"

namespace gpipe::skip {

class CallScope;

// The identity of a skip tensor: its name within a namespace.
struct Key {
  Namespace ns;
  std::string name;

  // A text like "'skip'", or "'skip' (namespace 3)" outside the common namespace.
  std::string to_text() const;

  friend bool operator==(const Key& a, const Key& b) { return a.ns == b.ns && a.name == b.name; }
  friend bool operator!=(const Key& a, const Key& b) { return !(a == b); }
  friend bool operator<(const Key& a, const Key& b) {
    return a.ns != b.ns ? a.ns < b.ns : a.name < b.name;
  }

  template <typename H>
  friend H AbslHashValue(H h, const Key& key) {
    return H::combine(std::move(h), key.ns, key.name);
  }
};

}  // namespace gpipe::skip

namespace std {
template <>
struct hash<gpipe::skip::Key> {
  size_t operator()(const gpipe::skip::Key& key) const {
    return hash<std::string>()(key.name) * 31 + hash<gpipe::skip::Namespace>()(key.ns);
  }
};
}  // namespace std

namespace gpipe::skip {

// The table in which stashed tensors wait until they are popped. It copies nothing and knows
// nothing of devices or autograd: a popped tensor is the very tensor that was stashed.
//
// `Skippable` layers use the table that is current on their thread: by default one that belongs to
// the thread; under a `TrackerScope` the one given there (a pipeline gives one to each cell).
//
// Thread-safety: none. Only one thread may use a table at a time.
class Tracker {
 public:
  // Takes `tensor`, which may be undefined. A tensor that waits under the same key is replaced.
  void stash(const Key& key, at::Tensor tensor);

  bool contains(const Key& key) const { return table_.count(key) != 0; }

  // The tensor that waits under `key`; null if there is none. The pointer is valid until the table
  // changes.
  const at::Tensor* find(const Key& key) const {
    const auto entry = table_.find(key);
    return entry == table_.end() ? nullptr : &entry->second;
  }

  // Removes and returns the tensor. Throws c10::Error if nothing waits under `key`.
  at::Tensor pop(const Key& key);

  // Like `pop`, but returns nullopt if nothing waits under `key`.
  std::optional<at::Tensor> take(const Key& key);

  size_t size() const { return table_.size(); }
  void clear() { table_.clear(); }

  // The waiting keys, sorted, for messages: a text like "'a', 'b' (namespace 3)".
  std::string to_text() const;

  // The table in use on this thread.
  static Tracker& current();

 private:
  std::unordered_map<Key, at::Tensor> table_;
};

// Makes `tracker` the current table of this thread for as long as the scope lives. Then the former
// table is current again, also when an exception ends the scope. Scopes nest. A `CallScope` that is
// open outside does not see what happens inside this scope, so open it within.
class TrackerScope {
 public:
  explicit TrackerScope(Tracker& tracker);
  ~TrackerScope();
  TrackerScope(const TrackerScope&) = delete;
  TrackerScope& operator=(const TrackerScope&) = delete;

 private:
  Tracker* const former_tracker_;
  CallScope* const former_call_;
};

// Gives one forward of layers that are used outside a pipeline a table of its own, so that a
// forward that fails half-way leaves no stashed tensor behind in the thread's table.
//
// Example:
//   skip::Scope scope;
//   auto output = model->forward(input);
//   scope.finish();
class Scope {
 public:
  Scope() : scope_(tracker_) {}

  // Throws c10::Error if a tensor was stashed and never popped. Calling it is optional.
  void finish() const;

 private:
  Tracker tracker_;
  TrackerScope scope_;
};

}  // namespace gpipe::skip

#endif  // SKIP_TRACKER_H_
