#ifndef GPIPE_SCHEDULE_DEPENDENCIES_H_
#define GPIPE_SCHEDULE_DEPENDENCIES_H_

// Where each action of a table is, and which actions wait for which: the one place that knows that
// forwards follow the routes, gradients run them backwards, and a stage's backward needs its
// forward. Inner to gpipe/schedule.

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"

namespace gpipe::internal {

struct Position {
  int32_t worker = -1;
  int32_t index = -1;

  explicit operator bool() const { return worker >= 0; }
};

// Keeps references to `workers` and `routes`; both must outlive it. Reading is thread-safe.
class Dependencies {
 public:
  struct Edge {
    Action action;                 // the other end
    Position position;             // where it is
    std::optional<RouteId> route;  // none: a stage's own result, nothing is transferred
  };

  // The actions must be within the ranges. Of an action that is there several times, the first
  // counts.
  Dependencies(int64_t stages, int64_t micro_batches,
               const std::vector<std::vector<Action>>& workers, const Routes& routes);

  // False if the table has no such action.
  Position find(const Action& action) const;

  // What `action` waits for: first what comes over routes, in the order in which a Step receives
  // it, then the own stage's result. Actions that the table does not have are left out.
  std::vector<Edge> needs(const Action& action) const;
  // Who receives over routes what `action` gives, in the order in which a Step sends it.
  std::vector<Edge> feeds(const Action& action) const;

  // All actions in an order in which the workers can run them when sends never wait: an action
  // comes after what it needs and after its worker's action before it. Shorter than the table if
  // that is impossible.
  std::vector<Position> order() const;

 private:
  size_t slot(const Action& action) const;
  void add(std::vector<Edge>* edges, const Action& action, std::optional<RouteId> route) const;
  // The action that hands on the gradients of a cell: its B, or else its I.
  Action gradient(int32_t stage, int32_t micro_batch) const;

  int64_t stages_;
  int64_t micro_batches_;
  const std::vector<std::vector<Action>>& workers_;
  const Routes& routes_;
  std::vector<Position> positions_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_DEPENDENCIES_H_
