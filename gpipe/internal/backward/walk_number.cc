#include "gpipe/internal/backward/walk_number.h"

#include <atomic>

namespace gpipe::internal {
namespace {

thread_local WalkScope* current = nullptr;
std::atomic<int64_t> last_number{0};

}  // namespace

WalkScope::WalkScope() : former_(current) { current = this; }
WalkScope::~WalkScope() { current = former_; }

void add_to_walk(int graph_task) {
  if (current != nullptr) current->graph_task_ = graph_task;
}

std::optional<int64_t> walk_number(int graph_task) {
  if (current == nullptr) return std::nullopt;
  if (graph_task != kNoGraphTask && graph_task != current->graph_task_) return std::nullopt;
  if (current->number_ == 0) current->number_ = ++last_number;
  return current->number_;
}

}  // namespace gpipe::internal
