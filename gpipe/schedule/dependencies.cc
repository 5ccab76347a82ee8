#include "gpipe/schedule/dependencies.h"

namespace gpipe::internal {

Dependencies::Dependencies(int64_t stages, int64_t micro_batches,
                           const std::vector<std::vector<Action>>& workers, const Routes& routes)
    : stages_(stages), micro_batches_(micro_batches), workers_(workers), routes_(routes) {
  for (const std::vector<Action>& actions : workers) {
    for (const Action& action : actions) has_offloads_ = has_offloads_ || !computes(action.kind);
  }
  const int kinds = has_offloads_ ? kActionKinds : static_cast<int>(ActionKind::kOffload);
  positions_.resize(static_cast<size_t>(stages * micro_batches * kinds));
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    for (size_t index = 0; index < workers[worker].size(); ++index) {
      Position& position = positions_[slot(workers[worker][index])];
      if (!position) position = {static_cast<int32_t>(worker), static_cast<int32_t>(index)};
    }
  }
}

Action Dependencies::gradient(int32_t stage, int32_t micro_batch) const {
  const Action whole{ActionKind::kBackward, stage, micro_batch};
  return find(whole) ? whole : Action{ActionKind::kInputGradient, stage, micro_batch};
}

std::vector<Dependencies::Edge> Dependencies::needs(const Action& action) const {
  std::vector<Edge> edges;
  for_each_need(action, [&edges](const Edge& edge) {
    edges.push_back(edge);
    return true;
  });
  return edges;
}

std::vector<Dependencies::Edge> Dependencies::feeds(const Action& action) const {
  std::vector<Edge> edges;
  const auto add = [&edges](const Edge& edge) {
    edges.push_back(edge);
    return true;
  };
  switch (action.kind) {
    case ActionKind::kForward:
      for (RouteId route : routes_.outgoing(action.stage)) {
        visit_found({ActionKind::kForward, routes_[route].target_stage, action.micro_batch}, route,
                    add);
      }
      break;
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
      for (RouteId route : routes_.incoming(action.stage)) {
        visit_found(gradient(routes_[route].source_stage, action.micro_batch), route, add);
      }
      break;
    case ActionKind::kWeightGradient:
    case ActionKind::kOffload:
    case ActionKind::kReload:
      break;
  }
  return edges;
}

std::vector<Position> Dependencies::order() const {
  size_t actions = 0;
  for (const std::vector<Action>& list : workers_) actions += list.size();
  std::vector<Position> order;
  order.reserve(actions);
  std::vector<int32_t> done(workers_.size(),
                            0);  // per worker, how many of its actions are in `order`
  const auto ready = [&](const Action& action) {
    return for_each_need(action, [&done](const Edge& need) {
      return need.position.index < done[static_cast<size_t>(need.position.worker)];
    });
  };
  // The sweeps over the workers go up and down in turn, because forwards go up and gradients go
  // down. If all sweeps went up, each would advance the gradients by one worker only, and the time
  // would be quadratic in the number of stages.
  bool up = true;
  for (bool moved = true; moved; up = !up) {
    moved = false;
    for (size_t k = 0; k < workers_.size(); ++k) {
      const size_t worker = up ? k : workers_.size() - 1 - k;
      const std::vector<Action>& actions = workers_[worker];
      while (static_cast<size_t>(done[worker]) < actions.size() &&
             ready(actions[static_cast<size_t>(done[worker])])) {
        order.push_back({static_cast<int32_t>(worker), done[worker]++});
        moved = true;
      }
    }
  }
  return order;
}

}  // namespace gpipe::internal
