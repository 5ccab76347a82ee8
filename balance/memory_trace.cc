#include "balance/memory_trace.h"

#include <algorithm>

namespace gpipe::balance {

const char* name_of(MemoryUse use) {
  switch (use) {
    case MemoryUse::kParameters:
      return "parameters";
    case MemoryUse::kBuffers:
      return "buffers";
    case MemoryUse::kData:
      return "data";
    case MemoryUse::kGradients:
      return "gradients";
    case MemoryUse::kOptimizerState:
      return "optimizer state";
    case MemoryUse::kActivations:
      return "activations";
    case MemoryUse::kReceived:
      return "received";
    case MemoryUse::kWorkspace:
      return "workspace";
  }
  return "unknown";
}

std::string name_of(const Turn& turn) {
  switch (turn.kind) {
    case Turn::Kind::kStart:
      return "the start";
    case Turn::Kind::kOptimizer:
      return "the optimizer";
    case Turn::Kind::kAction:
      break;
  }
  return turn.action.to_text();
}

std::vector<MemoryPeak> peaks(const MemoryTrace& trace) {
  std::vector<MemoryPeak> now(trace.devices);
  std::vector<MemoryPeak> most(trace.devices);
  for (const MemoryEvent& event : trace.events) {
    const MemoryBlock& block = trace.blocks[event.block];
    MemoryPeak& device = now[block.device];
    const int64_t bytes = event.free ? -block.bytes : block.bytes;
    device.bytes += bytes;
    device.by_use[static_cast<int>(block.use)] += bytes;
    if (device.bytes > most[block.device].bytes) {
      most[block.device] = device;
      most[block.device].turn = event.turn;
    }
  }
  return most;
}

std::vector<std::vector<int64_t>> curves(const MemoryTrace& trace) {
  std::vector<std::vector<int64_t>> result(trace.devices, std::vector<int64_t>(trace.turns.size()));
  std::vector<int64_t> now(trace.devices);
  size_t k = 0;
  for (size_t turn = 0; turn < trace.turns.size(); ++turn) {
    for (int32_t device = 0; device < trace.devices; ++device) result[device][turn] = now[device];
    for (; k < trace.events.size() && trace.events[k].turn == static_cast<int32_t>(turn); ++k) {
      const MemoryBlock& block = trace.blocks[trace.events[k].block];
      now[block.device] += trace.events[k].free ? -block.bytes : block.bytes;
      int64_t& most = result[block.device][turn];
      most = std::max(most, now[block.device]);
    }
  }
  return result;
}

int64_t peak_of_all(const MemoryTrace& trace) {
  int64_t now = 0;
  int64_t most = 0;
  for (const MemoryEvent& event : trace.events) {
    const int64_t bytes = trace.blocks[event.block].bytes;
    now += event.free ? -bytes : bytes;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace gpipe::balance
