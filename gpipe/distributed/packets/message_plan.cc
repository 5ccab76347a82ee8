#include "gpipe/distributed/packets/message_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::distributed {
namespace {

constexpr int64_t kLine = 64;

}  // namespace

MessagePlan::MessagePlan(const Program& program, std::vector<int64_t> rank_of_worker)
    : rank_of_worker_(std::move(rank_of_worker)) {
  if (rank_of_worker_.size() != program.workers.size()) {
    throw std::invalid_argument("a program of " + std::to_string(program.workers.size()) +
                                " workers, but ranks for " +
                                std::to_string(rank_of_worker_.size()));
  }
  int64_t first = 0;  // number of a worker's first slot among all slots
  std::vector<int64_t> first_of_worker;
  for (const int32_t slots : program.slots) {
    messages_.emplace_back(static_cast<size_t>(slots));
    first_of_worker.push_back(first);
    first += slots;
  }
  if (first > std::numeric_limits<int32_t>::max() / 4) {
    throw std::invalid_argument(std::to_string(first) +
                                " messages in a run are more than there are tags for");
  }
  std::map<std::pair<int32_t, int32_t>, int32_t> edge_numbers;  // by workers
  // How many edges there are so far between two ranks.
  std::map<std::pair<int64_t, int64_t>, int32_t> lanes;
  for (size_t worker = 0; worker < program.workers.size(); ++worker) {
    for (const Step& step : program.workers[worker]) {
      const bool is_forward = step.action.kind == ActionKind::kForward;
      for (const Step::Send& send : step.sends) {
        const int64_t to = rank_of_worker_[static_cast<size_t>(send.worker)];
        if (to == rank_of_worker_[worker]) continue;
        Message& sent = message(send.worker, send.slot);
        sent.from = rank_of_worker_[worker];
        sent.to = to;
        const int64_t number = first_of_worker[static_cast<size_t>(send.worker)] + send.slot;
        sent.tag = static_cast<int32_t>(4 * number + (is_forward ? 0 : 1));
        sent.second_tag = sent.tag + 2;
        sent.capacity = kFirstCapacity;
        const auto [known, is_new] = edge_numbers.try_emplace(
            {static_cast<int32_t>(worker), send.worker}, static_cast<int32_t>(edges_.size()));
        if (is_new) {
          edges_.push_back(
              {sent.from, to, lanes[{sent.from, to}]++, static_cast<int32_t>(worker), send.worker});
          in_order_.emplace_back();
        }
        std::vector<int32_t>& slots = in_order_[static_cast<size_t>(known->second)];
        sent.edge = known->second;
        slots.push_back(send.slot);
      }
    }
  }
  for (size_t worker = 0; worker < program.workers.size(); ++worker) {
    awaited_.emplace_back();
    for (const Step& step : program.workers[worker]) {
      for (const int32_t slot : step.receives) {
        if (message(static_cast<int32_t>(worker), slot).from >= 0) awaited_.back().push_back(slot);
      }
    }
  }
}

void MessagePlan::learn() {
  for (auto& messages : messages_) {
    for (Message& message : messages) {
      if (message.wanted == 0) continue;  // this process has neither sent nor received it
      const int64_t lines = (message.wanted + kLine - 1) / kLine * kLine;
      // A message above kGreatestCapacity is announced first, as in the first run. Otherwise memory
      // would be reserved for all awaited messages, whether they have been sent or not.
      message.capacity = lines > kGreatestCapacity ? kFirstCapacity : std::max(lines, kLine);
      message.wanted = 0;
    }
  }
}

}  // namespace gpipe::distributed
