// MemoryTrace: every block of memory that a training step allocates and frees, in the order of a
// schedule.
//
// Needs no LibTorch; balance/memory/memory_plan.h records one.
#ifndef BALANCE_MEMORY_MEMORY_TRACE_H_
#define BALANCE_MEMORY_MEMORY_TRACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/schedule/action.h"

namespace gpipe::balance {

// The purpose of a block.
enum class MemoryUse : uint8_t {
  kParameters,
  kBuffers,
  kData,            // the mini-batch's inputs and targets
  kGradients,       // gradients of parameters
  kOptimizerState,  // what the optimizer keeps from step to step
  kActivations,     // made by a forward, and kept for the backward or passed on
  kReceived,        // copied from another device: inputs, skips and gradients, until their use
  kWorkspace,       // allocated and freed within a recompute and backward, or within the optimizer
};
inline constexpr int kMemoryUses = 8;

// The use in words: "parameters", "optimizer state", ...
const char* name_of(MemoryUse use);

// A part of a run: the preparations, an action, or an optimizer's step.
struct Turn {
  enum class Kind : uint8_t { kStart, kAction, kOptimizer };
  Kind kind = Kind::kStart;
  Action action;  // only for kAction
};

// The turn in words: "the start", "F3.2", "the optimizer".
std::string name_of(const Turn& turn);

struct MemoryBlock {
  int64_t bytes = 0;
  int32_t device = 0;
  MemoryUse use = MemoryUse::kWorkspace;
  // For a copy between devices, which has a stream of its own on the receiving device: the device
  // that it comes from. -1: made on the device's computing stream.
  int32_t copied_from = -1;
};

struct MemoryEvent {
  int32_t block = 0;
  int32_t turn = 0;
  bool free = false;
};

struct MemoryTrace {
  int32_t devices = 0;
  std::vector<Turn> turns;  // in the order in which they would begin
  std::vector<MemoryBlock> blocks;
  // sorted by turn, and within a turn in the order in which they happened
  std::vector<MemoryEvent> events;
};

// The bytes on one device at the moment when it holds most.
struct MemoryPeak {
  int64_t bytes = 0;
  std::array<int64_t, kMemoryUses> by_use = {};
  int32_t turn = 0;

  int64_t of(MemoryUse use) const { return by_use[static_cast<size_t>(use)]; }
};

// [device] Its peak: the first moment at which it holds most.
std::vector<MemoryPeak> peaks(const MemoryTrace& trace);

// [device][turn] The peak of each turn: the first moment in it at which the device holds most. Both
// functions throw std::overflow_error for 2^63 bytes or more, and std::invalid_argument for numbers
// of blocks, devices or turns that the trace does not have.
std::vector<std::vector<MemoryPeak>> curves(const MemoryTrace& trace);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_MEMORY_TRACE_H_
