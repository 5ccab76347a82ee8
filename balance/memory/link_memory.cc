#include "balance/memory/link_memory.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "gpipe/schedule/action.h"

namespace gpipe::balance {
namespace {

constexpr int64_t kMiB = 1 << 20;

struct Message {
  int64_t bytes;
  size_t to, received;  // device, turn
};

// The turn of the device by which it has received what is sent to it in `turn`: the step's last
// with the same micro-batch and in the same direction, because the trace does not say for which of
// the device's stages it is. 0: there is none.
size_t received_at(const MemoryTrace& trace, const std::vector<int64_t>& device_of_stage,
                   size_t turn, int32_t device) {
  const Action& sender = trace.turns[turn].action;
  size_t last = 0;
  for (size_t next = turn + 1; next < trace.turns.size(); ++next) {
    if (trace.turns[next].kind != Turn::Kind::kAction) break;
    const Action& action = trace.turns[next].action;
    if (computes(action.kind) && action.kind != ActionKind::kWeightGradient &&
        device_of_stage[action.stage] == device && action.micro_batch == sender.micro_batch &&
        (action.kind == ActionKind::kForward) == (sender.kind == ActionKind::kForward)) {
      last = next;
    }
  }
  return last;
}

}  // namespace

std::vector<LinkMemory> link_memory(const MemoryTrace& trace,
                                    const std::vector<int64_t>& device_of_stage) {
  const auto devices = static_cast<size_t>(trace.devices);
  const size_t turns = trace.turns.size();
  std::vector<LinkMemory> result(devices);
  std::vector<std::vector<Message>> sent(turns);    // [turn]
  std::vector<std::vector<size_t>> senders(turns);  // [turn] whose messages it receives
  std::vector<int64_t> bytes(turns);                // [turn] of its messages
  std::vector<int64_t> all(devices);                // [device] of all messages
  std::set<std::pair<size_t, size_t>> edges;
  for (const MemoryEvent& event : trace.events) {
    const MemoryBlock& block = trace.blocks[event.block];
    if (event.free || block.copied_from < 0 || block.copied_from == block.device) continue;
    const auto from = static_cast<size_t>(block.copied_from);
    const auto to = static_cast<size_t>(block.device);
    const auto turn = static_cast<size_t>(event.turn);
    const size_t next = received_at(trace, device_of_stage, turn, block.device);
    if (next == 0) continue;
    sent[turn].push_back({block.bytes, to, next});
    senders[next].push_back(turn);
    for (const size_t each : {turn, next}) bytes[each] += block.bytes;
    for (const size_t each : {from, to}) all[each] += block.bytes;
    if (edges.emplace(from, to).second) {  // what NCCL takes at the two ends of an edge
      result[from].buffers += 24 * kMiB;
      result[to].buffers += 40 * kMiB;
    }
  }
  // [device][device] and [turn][device]: to which turn a device has come at least. A receiver may
  // be no further than that, whatever the times are.
  std::vector<std::vector<size_t>> now(devices, std::vector<size_t>(devices)), come(turns);
  std::vector<std::vector<Message>> waiting(devices);
  for (size_t turn = 0; turn < turns; ++turn) {
    if (trace.turns[turn].kind != Turn::Kind::kAction) continue;
    const auto device = static_cast<size_t>(device_of_stage[trace.turns[turn].action.stage]);
    std::vector<size_t>& known = now[device];
    for (const size_t sender : senders[turn]) {
      for (size_t d = 0; d < devices; ++d) known[d] = std::max(known[d], come[sender][d]);
    }
    known[device] = turn;
    come[turn] = known;
    std::vector<Message>& out = waiting[device];
    std::erase_if(out, [&](const Message& each) { return each.received <= known[each.to]; });
    out.insert(out.end(), sent[turn].begin(), sent[turn].end());
    int64_t held = 0;
    for (const Message& each : out) held += each.bytes;
    result[device].waiting = std::max(result[device].waiting, held);
    // HostLead's limits, and the step in progress. Each call waits for the losses, so two calls
    // are the most.
    const int64_t ahead = std::max(9 * bytes[turn], 64 * kMiB + bytes[turn]);
    result[device].ahead = std::max(result[device].ahead, std::min(all[device], ahead));
  }
  return result;
}

}  // namespace gpipe::balance
