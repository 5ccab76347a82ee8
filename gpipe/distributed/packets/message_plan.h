// MessagePlan: what the packets of a program are as messages between processes.
//
// It is made of a program and of where its workers are, so all processes make the same one without
// telling each other.
#ifndef GPIPE_DISTRIBUTED_PACKETS_MESSAGE_PLAN_H_
#define GPIPE_DISTRIBUTED_PACKETS_MESSAGE_PLAN_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "gpipe/schedule/program.h"

namespace gpipe::distributed {

// One packet of a run: what fills one slot of a worker. A slot that is filled by a worker of the
// same process is none.
struct Message {
  int64_t from = -1;  // the rank that sends it; -1: it does not leave its process
  int64_t to = -1;
  // What goes forward has even tags, and gradients odd ones. Of the tags the first is for the
  // message, and the second for what does not fit into it.
  int32_t tag = 0;
  int32_t second_tag = 0;
  // The greatest first message that its receiver is ready for. Both ends know it: it follows from
  // what was sent in the run before.
  int64_t capacity = 0;
  // What there was to send in this run.
  int64_t wanted = 0;
  int32_t edge = -1;  // by number
};

// A worker that sends, and one of another process that receives.
struct Edge {
  int64_t from = -1;  // ranks
  int64_t to = -1;
  // Which of those between these ranks: another program's may have other workers.
  int32_t lane = 0;
  int32_t from_worker = -1;
  int32_t to_worker = -1;

  friend bool operator<(const Edge& a, const Edge& b) {
    return std::tie(a.from, a.to, a.lane) < std::tie(b.from, b.to, b.lane);
  }
};

// Kept from run to run of a program, by one thread at a time; the messages of different slots may
// be used by different threads. After a failure all ranks make new ones.
class MessagePlan {
 public:
  static constexpr int64_t kFirstCapacity = 4096;
  static constexpr int64_t kGreatestCapacity = 4 << 20;

  // `rank_of_worker`: where each worker of the program runs. Throws std::invalid_argument if their
  // number is another one.
  MessagePlan(const Program& program, std::vector<int64_t> rank_of_worker);

  const std::vector<int64_t>& rank_of_worker() const { return rank_of_worker_; }
  Message& message(int32_t worker, int32_t slot) {
    return messages_[static_cast<size_t>(worker)][static_cast<size_t>(slot)];
  }
  // The slots of a worker that another process fills, in the order in which it waits for them.
  const std::vector<int32_t>& awaited(int32_t worker) const {
    return awaited_[static_cast<size_t>(worker)];
  }

  // The edges of all processes. On one that has no tags messages must be received in the order in
  // which they are sent, whatever the receiver asks for first.
  const std::vector<Edge>& edges() const { return edges_; }
  const Edge& edge(int32_t number) const { return edges_[static_cast<size_t>(number)]; }
  // Of an edge's messages, the slots that they fill, in the order in which they are sent.
  const std::vector<int32_t>& in_order(int32_t edge) const {
    return in_order_[static_cast<size_t>(edge)];
  }

  // All messages of a run have arrived: in the next run there is as much room as they wanted.
  void learn();

 private:
  std::vector<int64_t> rank_of_worker_;
  std::vector<std::vector<Message>> messages_;
  std::vector<std::vector<int32_t>> awaited_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int32_t>> in_order_;  // [edge]
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_MESSAGE_PLAN_H_
