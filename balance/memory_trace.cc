#include "balance/memory_trace.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

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

std::vector<std::vector<MemoryPeak>> curves(const MemoryTrace& trace) {
  std::vector<std::vector<MemoryPeak>> result(trace.devices);
  std::vector<MemoryPeak> now(trace.devices);
  size_t k = 0;
  for (size_t turn = 0; turn < trace.turns.size(); ++turn) {
    for (int32_t device = 0; device < trace.devices; ++device) {
      now[device].turn = static_cast<int32_t>(turn);
      result[device].push_back(now[device]);
    }
    for (; k < trace.events.size() && trace.events[k].turn == static_cast<int32_t>(turn); ++k) {
      const MemoryBlock& block = trace.blocks[trace.events[k].block];
      MemoryPeak& device = now[block.device];
      const int64_t bytes = trace.events[k].free ? -block.bytes : block.bytes;
      if (__builtin_add_overflow(device.bytes, bytes, &device.bytes)) {
        throw std::overflow_error("a device would hold more than 2^63 bytes");
      }
      device.by_use[static_cast<size_t>(block.use)] += bytes;
      if (device.bytes > result[block.device].back().bytes) result[block.device].back() = device;
    }
  }
  return result;
}

std::vector<MemoryPeak> peaks(const MemoryTrace& trace) {
  std::vector<MemoryPeak> result(trace.devices);
  const std::vector<std::vector<MemoryPeak>> all = curves(trace);
  for (int32_t device = 0; device < trace.devices; ++device) {
    for (const MemoryPeak& peak : all[device]) {
      if (peak.bytes > result[device].bytes) result[device] = peak;
    }
  }
  return result;
}

}  // namespace gpipe::balance
