// WalkScope, walk_number: tells apart the walks through graphs, for users' code that runs in them.
//
// Code that autograd's engine runs asks for the number of the graph task. A walk has none, so it
// has a number of its own. A custom function on an accelerator runs on a thread of the engine,
// which finds the walk by the graph task.
#ifndef GPIPE_INTERNAL_BACKWARD_WALK_NUMBER_H_
#define GPIPE_INTERNAL_BACKWARD_WALK_NUMBER_H_

#include <cstdint>
#include <optional>

namespace gpipe::internal {

// What graph tasks of the engine are called outside of the engine (get_current_graph_task_id()).
constexpr int kNoGraphTask = -1;

// A walk runs on this thread while this object lives. Scopes nest.
class WalkScope {
 public:
  WalkScope();
  ~WalkScope();
  WalkScope(const WalkScope&) = delete;
  WalkScope& operator=(const WalkScope&) = delete;

 private:
  friend std::optional<int64_t> walk_number(int graph_task);
  friend void add_to_walk(int graph_task);

  WalkScope* const former_;
  int64_t number_ = 0;  // set when it is asked for
  int graph_task_ = kNoGraphTask;
};

// The engine's task belongs to the walk of this thread: the walk has the engine run one of its
// nodes. Nothing happens outside of a walk.
void add_to_walk(int graph_task);

// The number of the walk of this thread, or else of the walk to which the graph task belongs. No
// other walk of the process has it. nullopt outside of a walk, and in a graph task that does not
// belong to the walk of this thread: the code that asks has begun a backward of its own.
// `graph_task`: the engine's current task.
std::optional<int64_t> walk_number(int graph_task);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_WALK_NUMBER_H_
