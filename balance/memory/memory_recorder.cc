#include "balance/memory/memory_recorder.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/schedule/simulate.h"
#include "meta/meta_devices.h"

namespace gpipe::balance {
namespace {

// What this thread is doing. A thread works for one recorder at a time, and a pipeline's worker
// does not outlive the pipeline.
struct Doing {
  uint64_t recorder = 0;  // number of the recorder; 0: none
  int32_t turn = 0;
  bool in_action = false;
  bool is_caller = false;  // it began the step, and may run a stage of it
};
thread_local Doing doing;

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// Sorts the actions by the time at which they would begin. If two begin at the same time, the
// worker with the smaller number comes first.
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
    : type_(type),
      device_of_stage_(std::move(device_of_stage)),
      devices_(1 + *std::max_element(device_of_stage_.begin(), device_of_stage_.end())),
      actions_(in_order(schedule)),
      pinned_(device_of_stage_.size()),
      number_(next_number()) {
  for (size_t k = 0; k < actions_.size(); ++k) order_[actions_[k]] = static_cast<int32_t>(k);
  turns_.push_back({});
  doing = {number_, 0, false, true};
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
  doing = {number_, begin_turn({}), false, true};
  first_action_ = doing.turn + 1;
  ended_ = 0;
  for (const Action& action : actions_) begin_turn({Turn::Kind::kAction, action});
}

void MemoryRecorder::begin_optimizer() {
  const std::lock_guard<std::mutex> lock(mutex_);
  doing = {number_, begin_turn({Turn::Kind::kOptimizer, {}}), false, true};
}

void MemoryRecorder::on_event(const Event& event) {
  doing.is_caller = doing.is_caller && is_mine();
  doing.recorder = number_;
  doing.in_action = event.edge == Event::Edge::kBegin;
  doing.turn = first_action_ + order_.at(event.action);
  if (event.edge == Event::Edge::kEnd) ++ended_;
}

bool MemoryRecorder::is_over() const {
  return doing.is_caller && turns_[doing.turn].kind != Turn::Kind::kOptimizer &&
         ended_ == actions_.size();
}

bool MemoryRecorder::is_mine() const { return doing.recorder == number_; }

void MemoryRecorder::on_allocate(uint64_t id, c10::Device device, int64_t bytes) {
  if (device.type() != type_ || !is_mine()) return;
  const int32_t number = type_ == c10::kMeta ? device.index() : 0;
  if (type_ == c10::kMeta && number >= kMostMetaDevices) {  // pinned memory, see stage_offloads.cc
    const std::lock_guard<std::mutex> lock(mutex_);
    // LibTorch rounds such blocks up.
    const auto taken = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
    pinned_[static_cast<size_t>(turns_[doing.turn].action.stage)] += taken;
    return;
  }
  if (number < 0 || number >= devices_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto k = static_cast<int32_t>(blocks_.size());
  Block& block = blocks_.emplace_back();
  block.bytes = bytes;
  block.device = number;
  block.turn = is_over() ? static_cast<int32_t>(turns_.size()) - 1 : doing.turn;
  block.copied = turns_[doing.turn].kind == Turn::Kind::kAction && !doing.in_action && !is_over();
  live_[id] = k;
  events_.push_back({k, block.turn, false});
}

void MemoryRecorder::on_free(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(id);
  if (found == live_.end()) return;
  const int32_t k = found->second;
  live_.erase(found);
  Block& block = blocks_[k];
  // The step's results are freed by its caller, at the step's end. Blocks that another thread frees
  // count as freed at the end, too.
  const bool at_the_end = !is_mine() || is_over() || turns_[doing.turn].kind == Turn::Kind::kStart;
  const int32_t turn = at_the_end ? static_cast<int32_t>(turns_.size()) - 1 : doing.turn;
  block.freed_turn = std::max(block.turn, turn);
  events_.push_back({k, block.freed_turn, true});
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
  if (turn.action.kind == ActionKind::kForward || turn.action.kind == ActionKind::kReload) {
    return MemoryUse::kActivations;
  }
  // A parameter's gradient outlives the actions of its step; other blocks of a backward do not.
  const bool outlives = block.freed_turn < 0 || turns[block.freed_turn].kind != Turn::Kind::kAction;
  return outlives ? MemoryUse::kGradients : MemoryUse::kWorkspace;
}

std::vector<int64_t> MemoryRecorder::pinned() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pinned_;
}

MemoryTrace MemoryRecorder::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  MemoryTrace trace;
  trace.devices = devices_;
  trace.turns = std::exchange(turns_, {Turn()});
  trace.blocks = std::exchange(existing_, {});
  const auto existing = static_cast<int32_t>(trace.blocks.size());
  for (int32_t k = 0; k < existing; ++k) trace.events.push_back({k, 0, false});
  for (const Block& block : blocks_) {
    const Turn& turn = trace.turns[block.turn];
    const bool from_stage = block.copied && turn.kind == Turn::Kind::kAction;
    trace.blocks.push_back({block.bytes, block.device, use_of(block, trace.turns),
                            from_stage ? device_of_stage_[turn.action.stage] : -1});
  }
  std::stable_sort(events_.begin(), events_.end(),
                   [](const Recorded& a, const Recorded& b) { return a.turn < b.turn; });
  for (const Recorded& event : events_) {
    trace.events.push_back({existing + event.block, event.turn, event.free});
  }
  blocks_.clear();
  events_.clear();
  live_.clear();
  return trace;
}

}  // namespace gpipe::balance
