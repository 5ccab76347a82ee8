// Routes: which values flow between which stages. They are the same for every micro-batch.
//
// The values are the activations from stage j to stage j + 1, and the skip tensors, which go
// straight from the stage that stashes them to the stage that pops them. A gradient takes its
// value's route backwards. This file does not know what a value is (a tensor, several, bytes).
#ifndef GPIPE_SCHEDULE_ROUTES_H_
#define GPIPE_SCHEDULE_ROUTES_H_

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace gpipe {

// The number of a route, its identity. It has a type of its own, so that it cannot be confused with
// the number of a stage or a skip. Only Routes knows which route has which number.
enum class RouteId : int32_t {};

// The number as text: "4".
std::string to_text(RouteId id);
std::ostream& operator<<(std::ostream& out, RouteId id);

struct Route {
  int32_t source_stage = 0;
  int32_t target_stage = 0;  // always greater than source_stage
  std::string name;          // for people; several routes may have the same

  friend bool operator==(const Route& a, const Route& b) {
    return a.source_stage == b.source_stage && a.target_stage == b.target_stage && a.name == b.name;
  }
  friend bool operator!=(const Route& a, const Route& b) { return !(a == b); }
  // Writes "0 -> 2 encoder": the stages and the name.
  friend std::ostream& operator<<(std::ostream& out, const Route& route);
};

// The routes of a pipeline: an immutable value.
//
// Thread-safety: safe to read from any thread.
//
// Example:
//   Routes routes = Routes::create(3, {{0, 2, "encoder"}});
//   // 1 -> 2 "activation", then 0 -> 2 "encoder"
//   for (RouteId id : routes.incoming(2)) use(routes[id]);
class Routes {
 public:
  // The activation routes, named "activation", are numbered first, in the order of the stages. The
  // skips follow in the order given. Throws std::invalid_argument if stages < 1, or if a skip
  // violates 0 <= source < target < stages (a skip that stays inside a stage needs no route).
  static Routes create(int64_t stages, std::vector<Route> skips = {});

  int64_t stages() const { return static_cast<int64_t>(outgoing_.size()); }
  int64_t size() const { return static_cast<int64_t>(routes_.size()); }
  // Throws std::out_of_range for an id that does not exist.
  const Route& operator[](RouteId id) const;
  // For the route of a skip: its index in the list that create() was given. Empty for an
  // activation. Throws std::out_of_range for an id that does not exist.
  std::optional<size_t> skip(RouteId id) const;

  // The routes from a stage and into it, in ascending order, so the activation, if there is one, is
  // first. Both throw std::out_of_range for a stage that does not exist.
  const std::vector<RouteId>& outgoing(int64_t stage) const;
  const std::vector<RouteId>& incoming(int64_t stage) const;

  // One line per route: "2: 0 -> 2 encoder".
  std::string to_text() const;

  friend bool operator==(const Routes& a, const Routes& b) {
    return a.outgoing_.size() == b.outgoing_.size() && a.routes_ == b.routes_;
  }
  friend bool operator!=(const Routes& a, const Routes& b) { return !(a == b); }
  // Writes to_text().
  friend std::ostream& operator<<(std::ostream& out, const Routes& routes);

 private:
  Routes() = default;

  std::vector<Route> routes_;
  std::vector<std::vector<RouteId>> outgoing_;
  std::vector<std::vector<RouteId>> incoming_;
};

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_ROUTES_H_
