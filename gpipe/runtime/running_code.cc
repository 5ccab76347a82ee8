#include "gpipe/runtime/running_code.h"

#include <algorithm>

#include "gpipe/runtime/mutex.h"

namespace gpipe::internal {
namespace {

// The registry is never destroyed, because threads may outlive static objects.
template <typename State>
struct Registry {
  Mutex mutex;
  std::vector<std::weak_ptr<const State>> states GPIPE_GUARDED_BY(mutex);

  static Registry& instance() {
    static auto* const registry = new Registry;
    return *registry;
  }
};

}  // namespace

RunningCode::RunningCode(std::vector<std::string> names) : state_(std::make_shared<State>()) {
  state_->names = std::move(names);
  auto& registry = Registry<State>::instance();
  const MutexLock lock(registry.mutex);
  auto& states = registry.states;
  states.erase(
      std::remove_if(states.begin(), states.end(),
                     [](const std::weak_ptr<const State>& each) { return each.expired(); }),
      states.end());
  states.push_back(state_);
}

RunningCode::Moment RunningCode::all_now() {
  Moment moment;
  auto& registry = Registry<State>::instance();
  const MutexLock lock(registry.mutex);
  for (const std::weak_ptr<const State>& each : registry.states) {
    std::shared_ptr<const State> state = each.lock();
    if (state == nullptr) continue;
    const uint64_t changes = state->changes.load(std::memory_order_relaxed);
    if (changes % 2 == 1) moment.emplace_back(std::move(state), changes);
  }
  return moment;
}

std::string RunningCode::unfinished(const Moment& moment) {
  for (const auto& [state, changes] : moment) {
    const size_t position = state->position.load(std::memory_order_relaxed);
    if (state->changes.load(std::memory_order_relaxed) == changes) {
      return state->names.at(std::min(position, state->names.size() - 1));
    }
  }
  return "";
}

}  // namespace gpipe::internal
