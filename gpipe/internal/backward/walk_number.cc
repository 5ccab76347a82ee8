#include "gpipe/internal/backward/walk_number.h"

#include <mutex>
#include <unordered_map>

namespace gpipe::internal {
namespace {

thread_local WalkScope* current = nullptr;
int64_t last_number = 0;

// Which graph task belongs to which walk, for threads of the engine. A walk waits for its task, so
// the scope lives as long as anything in the task can ask. The mutex also guards the numbers,
// because several threads of one task may ask at once.
std::mutex mutex;
std::unordered_map<int, WalkScope*>& walks() {
  static auto* const walks = new std::unordered_map<int, WalkScope*>();  // threads outlive statics
  return *walks;
}

}  // namespace

WalkScope::WalkScope() : former_(current) { current = this; }
WalkScope::~WalkScope() {
  current = former_;
  if (graph_task_ == kNoGraphTask) return;
  const std::lock_guard lock(mutex);
  walks().erase(graph_task_);
}

void add_to_walk(int graph_task) {
  if (current == nullptr) return;
  const std::lock_guard lock(mutex);
  walks().erase(current->graph_task_);
  walks()[graph_task] = current;
  current->graph_task_ = graph_task;
}

std::optional<int64_t> walk_number(int graph_task) {
  const std::lock_guard lock(mutex);
  WalkScope* walk = current;
  if (walk == nullptr) {
    const auto found = walks().find(graph_task);
    if (found == walks().end()) return std::nullopt;
    walk = found->second;
  }
  if (graph_task != kNoGraphTask && graph_task != walk->graph_task_) return std::nullopt;
  if (walk->number_ == 0) walk->number_ = ++last_number;
  return walk->number_;
}

}  // namespace gpipe::internal
