#include "gpipe/schedule/routes.h"

#include <ostream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace gpipe {
namespace {

// The most stages: more than any pipeline has, and few enough that a typing error leads to a
// message and not to exhausted memory.
constexpr int64_t kMostStages = int64_t{1} << 24;

// Returns values[index], or throws std::out_of_range. `what` says in the error what the index
// counts.
template <typename T>
const T& element(const std::vector<T>& values, int64_t index, const char* what) {
  if (index < 0 || index >= static_cast<int64_t>(values.size())) {
    throw std::out_of_range("Routes: there is no " + std::string(what) + " " +
                            std::to_string(index) + ", give one of 0.." +
                            std::to_string(static_cast<int64_t>(values.size()) - 1));
  }
  return values[static_cast<size_t>(index)];
}

}  // namespace

std::string to_text(RouteId id) { return std::to_string(static_cast<int32_t>(id)); }

Routes Routes::create(int64_t stages, std::vector<Route> skips) {
  if (stages < 1 || stages > kMostStages) {
    throw std::invalid_argument("Routes::create: stages must be at least 1 and at most " +
                                std::to_string(kMostStages) + ", got " + std::to_string(stages));
  }
  Routes routes;
  routes.routes_.reserve(static_cast<size_t>(stages) - 1 + skips.size());
  for (int32_t stage = 0; stage + 1 < stages; ++stage) {
    routes.routes_.push_back({stage, stage + 1, "activation"});
  }
  for (Route& skip : skips) {
    if (skip.source_stage < 0 || skip.source_stage >= skip.target_stage ||
        skip.target_stage >= stages) {
      throw std::invalid_argument(
          "Routes::create: skip '" + skip.name + "' goes from stage " +
          std::to_string(skip.source_stage) + " to stage " + std::to_string(skip.target_stage) +
          ", but a skip must go to a later stage of the " + std::to_string(stages) +
          " there are (one inside a stage needs no route)");
    }
    routes.routes_.push_back(std::move(skip));
  }
  routes.outgoing_.resize(static_cast<size_t>(stages));
  routes.incoming_.resize(static_cast<size_t>(stages));
  for (size_t id = 0; id < routes.routes_.size(); ++id) {
    const Route& route = routes.routes_[id];
    routes.outgoing_[static_cast<size_t>(route.source_stage)].push_back(static_cast<RouteId>(id));
    routes.incoming_[static_cast<size_t>(route.target_stage)].push_back(static_cast<RouteId>(id));
  }
  return routes;
}

const Route& Routes::operator[](RouteId id) const {
  return element(routes_, static_cast<int64_t>(id), "route");
}

std::optional<size_t> Routes::skip(RouteId id) const {
  (void)(*this)[id];
  const size_t activations = outgoing_.size() - 1;
  const size_t number = static_cast<size_t>(id);
  if (number < activations) return std::nullopt;
  return number - activations;
}

const std::vector<RouteId>& Routes::outgoing(int64_t stage) const {
  return element(outgoing_, stage, "stage");
}

const std::vector<RouteId>& Routes::incoming(int64_t stage) const {
  return element(incoming_, stage, "stage");
}

std::ostream& operator<<(std::ostream& out, RouteId id) { return out << to_text(id); }

std::ostream& operator<<(std::ostream& out, const Route& route) {
  return out << route.source_stage << " -> " << route.target_stage << " " << route.name;
}

std::ostream& operator<<(std::ostream& out, const Routes& routes) {
  for (size_t id = 0; id < routes.routes_.size(); ++id) {
    out << id << ": " << routes.routes_[id] << "\n";
  }
  return out;
}

std::string Routes::to_text() const {
  std::ostringstream text;
  text << *this;
  return text.str();
}

}  // namespace gpipe
