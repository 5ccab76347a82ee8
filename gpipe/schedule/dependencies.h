// Dependencies: where each action of a table is, and which actions wait for which.
//
// Only this class knows that forwards follow the routes, that gradients take them backwards, and
// that a stage's backward needs its forward. Internal to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_DEPENDENCIES_H_
#define GPIPE_SCHEDULE_DEPENDENCIES_H_

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

// Requirements: Dependencies keeps references to `workers` and `routes`; both must outlive it.
//
// Thread-safety: reading is thread-safe.
class Dependencies {
 public:
  struct Edge {
    Action action;                 // the action at the other end
    Position position;             // where that action is
    std::optional<RouteId> route;  // none for a stage's own result: nothing is transferred
  };

  // The actions must be within the ranges. If an action occurs several times, the first occurrence
  // counts.
  Dependencies(int64_t stages, int64_t micro_batches,
               const std::vector<std::vector<Action>>& workers, const Routes& routes);

  // The position of an action in the table. It is false (as a bool) if the table does not have the
  // action.
  Position find(const Action& action) const {
    const size_t k = slot(action);
    return k < positions_.size() ? positions_[k] : Position();
  }
  // Whether some cell of the table is offloaded.
  bool has_offloads() const { return has_offloads_; }

  // The actions that `action` waits for. First come those whose results arrive over routes, in the
  // order in which a Step receives them, and then the action of its own stage. Actions that are not
  // in the table are left out.
  std::vector<Edge> needs(const Action& action) const;
  // Visits the edges of needs() one by one, without allocating a list, because for large tables
  // this is called millions of times. `visit` takes an Edge and returns whether to go on. Returns
  // false if it was stopped.
  template <typename Visit>
  bool for_each_need(const Action& action, const Visit& visit) const;
  // The actions that receive the results of `action` over routes, in the order in which a Step
  // sends them.
  std::vector<Edge> feeds(const Action& action) const;

  // All actions in an order in which the workers can run them when sends never wait: an action
  // comes after what it needs and after the previous action of its worker. The result is shorter
  // than the table if there is no such order.
  std::vector<Position> order() const;

 private:
  size_t slot(const Action& action) const {
    return static_cast<size_t>((static_cast<int64_t>(action.kind) * stages_ + action.stage) *
                                   micro_batches_ +
                               action.micro_batch);
  }
  // Visits the edge if the table has the action.
  template <typename Visit>
  bool visit_found(const Action& action, std::optional<RouteId> route, const Visit& visit) const {
    const Position position = find(action);
    return !position || visit(Edge{action, position, route});
  }
  // The action that sends the gradients of a cell: its B if there is one, otherwise its I.
  Action gradient(int32_t stage, int32_t micro_batch) const;

  int64_t stages_;
  int64_t micro_batches_;
  const std::vector<std::vector<Action>>& workers_;
  const Routes& routes_;
  std::vector<Position> positions_;  // without room for offloads and reloads if there are none
  bool has_offloads_ = false;
};

template <typename Visit>
bool Dependencies::for_each_need(const Action& action, const Visit& visit) const {
  switch (action.kind) {
    case ActionKind::kForward:
      for (RouteId route : routes_.incoming(action.stage)) {
        const Action source{ActionKind::kForward, routes_[route].source_stage, action.micro_batch};
        if (!visit_found(source, route, visit)) return false;
      }
      return true;
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
      for (RouteId route : routes_.outgoing(action.stage)) {
        const Action target = gradient(routes_[route].target_stage, action.micro_batch);
        if (!visit_found(target, route, visit)) return false;
      }
      return visit_found({ActionKind::kForward, action.stage, action.micro_batch}, std::nullopt,
                         visit);
    case ActionKind::kWeightGradient:
      return visit_found({ActionKind::kInputGradient, action.stage, action.micro_batch},
                         std::nullopt, visit);
    case ActionKind::kOffload:
      return visit_found({ActionKind::kForward, action.stage, action.micro_batch}, std::nullopt,
                         visit);
    case ActionKind::kReload:
      return visit_found({ActionKind::kOffload, action.stage, action.micro_batch}, std::nullopt,
                         visit);
  }
  return true;
}

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_DEPENDENCIES_H_
