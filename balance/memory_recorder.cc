#include "balance/memory_recorder.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {
namespace {

// What this thread is doing. A thread works for one recorder at a time, and a worker of a pipeline
// lives no longer than it.
struct Doing {
  int32_t turn = 0;
  bool in_action = false;
  bool is_caller = false;
};
thread_local Doing doing;

// The actions in the order in which they would begin. Where two begin at the same time the worker
// with the smaller number comes first.
std::vector<Action> in_order(const Schedule& schedule) {
  const Simulation simulation = simulate(schedule, {uniform_cost({1.0, 2.0, 1.0, 1.0}), {}});
  std::vector<TimedAction> all;
  for (const std::vector<TimedAction>& worker : simulation.workers) {
    all.insert(all.end(), worker.begin(), worker.end());
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const TimedAction& a, const TimedAction& b) { return a.start < b.start; });
  std::vector<Action> actions;
  for (const TimedAction& timed : all) actions.push_back(timed.action);
  return actions;
}

}  // namespace

MemoryRecorder::MemoryRecorder(c10::DeviceType type, const Schedule& schedule,
                               std::vector<int32_t> device_of_stage)
    : type_(type), device_of_stage_(std::move(device_of_stage)), actions_(in_order(schedule)) {
  for (size_t k = 0; k < actions_.size(); ++k) order_[actions_[k]] = static_cast<int32_t>(k);
  turns_.push_back({});
  doing = {0, false, true};
}

void MemoryRecorder::add(int64_t bytes, int32_t device, MemoryUse use) {
  existing_.push_back({bytes, device, use, -1});
}

int32_t MemoryRecorder::begin_turn(Turn turn) {
  turns_.push_back(turn);
  return static_cast<int32_t>(turns_.size()) - 1;
}

void MemoryRecorder::begin_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  doing = {begin_turn({}), false, true};
  first_action_ = doing.turn + 1;
  for (const Action& action : actions_) begin_turn({Turn::Kind::kAction, action});
}

void MemoryRecorder::begin_optimizer() {
  const std::lock_guard<std::mutex> lock(mutex_);
  doing = {begin_turn({Turn::Kind::kOptimizer, {}}), false, true};
}

void MemoryRecorder::on_event(const Event& event) {
  doing.in_action = event.edge == Event::Edge::kBegin;
  // A stage on the calling thread is like one on a worker, until the step ends.
  doing.is_caller = false;
  doing.turn = first_action_ + order_.at(event.action);
}

void MemoryRecorder::on_allocate(uint64_t id, c10::Device device, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (first_id_ == 0) first_id_ = id;
  // Two threads may come here in another order than they got their numbers.
  if (id < first_id_) {
    blocks_.insert(blocks_.begin(), first_id_ - id, Block());
    for (Recorded& event : events_) event.block += static_cast<int32_t>(first_id_ - id);
    first_id_ = id;
  }
  const size_t k = id - first_id_;
  if (blocks_.size() <= k) blocks_.resize(std::max(k + 1, blocks_.size()));
  if (device.type() != type_) return;
  const int32_t number = type_ == c10::kMeta ? device.index() : 0;
  if (number < 0) return;
  Block& block = blocks_[k];
  block.bytes = bytes;
  block.device = number;
  block.turn = doing.turn;
  block.copied = !doing.is_caller && !doing.in_action;
  events_.push_back({static_cast<int32_t>(k), block.turn, false});
}

void MemoryRecorder::on_free(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block& block = blocks_[id - first_id_];
  if (block.device < 0) return;
  // What the step leaves is freed by its caller, at its end.
  const int32_t last = doing.is_caller && turns_[doing.turn].kind == Turn::Kind::kStart
                           ? static_cast<int32_t>(turns_.size()) - 1
                           : doing.turn;
  block.freed_turn = std::max(block.turn, last);
  events_.push_back({static_cast<int32_t>(id - first_id_), block.freed_turn, true});
}

MemoryUse MemoryRecorder::use_of(const Block& block, const std::vector<Turn>& turns) {
  const Turn& turn = turns[block.turn];
  switch (turn.kind) {
    case Turn::Kind::kStart:
      return MemoryUse::kData;
    case Turn::Kind::kOptimizer:
      return block.freed_turn < 0 ? MemoryUse::kOptimizerState : MemoryUse::kWorkspace;
    case Turn::Kind::kAction:
      break;
  }
  if (block.copied) return MemoryUse::kReceived;
  if (turn.action.kind == ActionKind::kForward) return MemoryUse::kActivations;
  // A gradient of a parameter outlives the actions of its step.
  const bool outlives = block.freed_turn < 0 || turns[block.freed_turn].kind != Turn::Kind::kAction;
  return outlives ? MemoryUse::kGradients : MemoryUse::kWorkspace;
}

MemoryTrace MemoryRecorder::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  MemoryTrace trace;
  trace.devices = 1 + *std::max_element(device_of_stage_.begin(), device_of_stage_.end());
  trace.turns = std::exchange(turns_, {Turn()});
  trace.blocks = std::exchange(existing_, {});
  const auto existing = static_cast<int32_t>(trace.blocks.size());
  for (int32_t k = 0; k < existing; ++k) trace.events.push_back({k, 0, false});
  for (const Block& block : blocks_) {
    MemoryBlock& added = trace.blocks.emplace_back();
    if (block.device < 0) continue;
    const Turn& turn = trace.turns[block.turn];
    const bool from_stage = block.copied && turn.kind == Turn::Kind::kAction;
    added = {block.bytes, block.device, use_of(block, trace.turns),
             from_stage ? device_of_stage_[turn.action.stage] : -1};
  }
  std::stable_sort(events_.begin(), events_.end(),
                   [](const Recorded& a, const Recorded& b) { return a.turn < b.turn; });
  for (const Recorded& event : events_) {
    trace.events.push_back({existing + event.block, event.turn, event.free});
  }
  blocks_.clear();
  events_.clear();
  first_id_ = 0;
  return trace;
}

}  // namespace gpipe::balance
