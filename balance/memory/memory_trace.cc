#include "balance/memory/memory_trace.h"

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

namespace {

// Returns the block of an event. Throws if the trace does not have the block, or if the block is
// not on one of the trace's devices.
const MemoryBlock& block_of(const MemoryTrace& trace, const MemoryEvent& event) {
  const auto refuse = [](const std::string& what, int64_t number, int64_t count) {
    throw std::invalid_argument("a trace of memory has " + what + " " + std::to_string(number) +
                                ", but only " + std::to_string(count) + " of them, counted from 0");
  };
  const auto blocks = static_cast<int64_t>(trace.blocks.size());
  if (event.block < 0 || event.block >= blocks) refuse("an event of block", event.block, blocks);
  const MemoryBlock& block = trace.blocks[static_cast<size_t>(event.block)];
  if (block.device < 0 || block.device >= trace.devices) {
    refuse("a block on device", block.device, trace.devices);
  }
  const auto use = static_cast<int64_t>(block.use);
  if (use >= kMemoryUses) refuse("a block for use", use, kMemoryUses);
  return block;
}

}  // namespace

std::vector<std::vector<MemoryPeak>> curves(const MemoryTrace& trace) {
  if (trace.devices < 0) {
    throw std::invalid_argument("a trace of memory has " + std::to_string(trace.devices) +
                                " devices; it has 0 or more");
  }
  std::vector<std::vector<MemoryPeak>> result(trace.devices);
  std::vector<MemoryPeak> now(trace.devices);
  size_t k = 0;
  for (size_t turn = 0; turn < trace.turns.size(); ++turn) {
    for (int32_t device = 0; device < trace.devices; ++device) {
      now[device].turn = static_cast<int32_t>(turn);
      result[device].push_back(now[device]);
    }
    for (; k < trace.events.size() && trace.events[k].turn == static_cast<int32_t>(turn); ++k) {
      const MemoryBlock& block = block_of(trace, trace.events[k]);
      MemoryPeak& device = now[block.device];
      for (int64_t* sum : {&device.bytes, &device.by_use[static_cast<size_t>(block.use)]}) {
        if (trace.events[k].free ? __builtin_sub_overflow(*sum, block.bytes, sum)
                                 : __builtin_add_overflow(*sum, block.bytes, sum)) {
          throw std::overflow_error("a device would hold more than 2^63 bytes");
        }
      }
      if (device.bytes > result[block.device].back().bytes) result[block.device].back() = device;
    }
  }
  if (k < trace.events.size()) {
    throw std::invalid_argument(
        "a trace of memory has an event in turn " + std::to_string(trace.events[k].turn) +
        " behind those of later turns, or without such a turn; it has " +
        std::to_string(trace.turns.size()) + " turns, and its events are in their order");
  }
  return result;
}

std::vector<MemoryPeak> peaks(const MemoryTrace& trace) {
  const std::vector<std::vector<MemoryPeak>> all = curves(trace);
  std::vector<MemoryPeak> result(all.size());
  for (int32_t device = 0; device < trace.devices; ++device) {
    for (const MemoryPeak& peak : all[device]) {
      if (peak.bytes > result[device].bytes) result[device] = peak;
    }
  }
  return result;
}

}  // namespace gpipe::balance
