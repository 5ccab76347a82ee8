// CallPlan and CallScope: which skips one call of a layer must use, and a check that the call uses
// them.
#ifndef SKIP_CALL_H_
#define SKIP_CALL_H_

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "skip/skippable.h"

namespace gpipe::skip {

// Which skippable layers run in one call of a top-level layer. A plan is made once per layer and
// used for each of the layer's calls.
//
// Requirements: a plan points into the layer, which must outlive it.
//
// Thread-safety: immutable; several threads may use it at once.
class CallPlan {
 public:
  explicit CallPlan(const torch::nn::Module& layer);

  // True if the layer has no skippable layer in it. A CallScope is useful all the same: it refuses
  // skippable layers that are hidden in this layer and would run without a route.
  bool empty() const { return entries_.empty(); }

  // Calls `visit` with the key of each tensor that the layer may stash.
  template <typename Visit>
  void for_each_stash(Visit visit) const {
    for (const Entry& entry : entries_) {
      for (const Key& key : entry.stash_keys) visit(key);
    }
  }

  // A layer's Skippable::isolate() may be called after the plan was made, which would leave skips
  // without a route. Describes the first skip whose namespace has changed since then; nullopt if
  // there is none.
  std::optional<std::string> moved_skip() const;

 private:
  friend class CallScope;

  struct Entry {
    const Skippable* skippable;
    bool required;     // true for the layer itself, which certainly runs
    std::string path;  // "" for the layer itself, "1.conv" for a nested one
    int64_t offset;    // where its flags begin: first those of the stashes, then those of the pops
    // The keys as they were when the plan was made.
    std::vector<Key> stash_keys;
    std::vector<Key> pop_keys;
  };

  std::vector<Entry> entries_;
  int64_t flags_ = 0;
};

// Observes one call of a top-level layer on this thread. Open it right before the call (within the
// TrackerScope, if there is one), and call `finish` right after. If the call throws, the scope just
// ends. Calls nest: an inner scope hides the outer one.
//
// Throws: while it is open, `stash` and `pop` of a layer throw c10::Error when a name is used
// twice, or when the layer is not in the plan (it is not a registered submodule, so its skips have
// no route).
//
// Example:
//   TrackerScope tracker_scope(tracker);
//   CallScope call(plan);
//   auto output = layer.forward(input);
//   call.finish();
class CallScope {
 public:
  explicit CallScope(const CallPlan& plan);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // Throws c10::Error that names every skip declared but not stashed, or not popped, in this call.
  // The layer itself is always checked. A nested layer is checked only if it stashed or popped
  // anything, since only its parent knows whether it is to run.
  void finish();

 private:
  friend class Skippable;

  void note_stash(const Skippable& skippable, size_t index);
  void note_pop(const Skippable& skippable, size_t index);
  const CallPlan::Entry& entry_of(const Skippable& skippable) const;

  const CallPlan& plan_;
  CallScope* const former_;
  c10::SmallVector<bool, 16> done_;
};

}  // namespace gpipe::skip

#endif  // SKIP_CALL_H_
