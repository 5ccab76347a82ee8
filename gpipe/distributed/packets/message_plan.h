// MessagePlan: the messages between processes of a program's run, with their tags and sizes.
//
// It follows from a program and the ranks of its workers, so all processes make the same one
// without communication.
#ifndef GPIPE_DISTRIBUTED_PACKETS_MESSAGE_PLAN_H_
#define GPIPE_DISTRIBUTED_PACKETS_MESSAGE_PLAN_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "gpipe/schedule/program.h"

namespace gpipe::distributed {

// One packet of a run, which fills one slot of a worker. If a worker of the same process fills the
// slot, it is not a message, and from is -1.
struct Message {
  int64_t from = -1;  // the rank that sends it; -1: it does not leave its process
  int64_t to = -1;
  // Packets of the forward pass have even tags, and gradients odd ones. `tag` is for the message
  // itself, and `second_tag` for what does not fit into it.
  int32_t tag = 0;
  int32_t second_tag = 0;
  // The greatest first message, in bytes, that the receiver is ready for. Both ends know it: it
  // follows from the sizes in the previous run.
  int64_t capacity = 0;
  // The number of bytes that the packet's first message needed in this run.
  int64_t wanted = 0;
  int32_t edge = -1;  // its number in MessagePlan::edges()
};

// A worker that sends, and a worker of another process that receives from it.
struct Edge {
  int64_t from = -1;  // ranks
  int64_t to = -1;
  // The edge's number among the edges between these ranks. Links are found by ranks and lane, not
  // by workers, because another program may have other workers.
  int32_t lane = 0;
  int32_t from_worker = -1;
  int32_t to_worker = -1;

  friend bool operator<(const Edge& a, const Edge& b) {
    return std::tie(a.from, a.to, a.lane) < std::tie(b.from, b.to, b.lane);
  }
};

// A plan is kept for all runs of a program. One thread at a time uses it, but different threads may
// use the messages of different slots. After a failure all ranks make new plans.
class MessagePlan {
 public:
  static constexpr int64_t kFirstCapacity = 4096;
  static constexpr int64_t kGreatestCapacity = 4 << 20;

  // `rank_of_worker`: the rank that runs each worker of the program. Throws std::invalid_argument
  // if its size is not the number of workers, or if a run would need more tags than there are.
  MessagePlan(const Program& program, std::vector<int64_t> rank_of_worker);

  const std::vector<int64_t>& rank_of_worker() const { return rank_of_worker_; }
  Message& message(int32_t worker, int32_t slot) {
    return messages_[static_cast<size_t>(worker)][static_cast<size_t>(slot)];
  }
  // The slots of a worker that another process fills, in the order in which it waits for them.
  const std::vector<int32_t>& awaited(int32_t worker) const {
    return awaited_[static_cast<size_t>(worker)];
  }

  // The edges of all processes. On a device link, which has no tags, messages must be received in
  // the order in which they are sent, whatever the receiver asks for first.
  const std::vector<Edge>& edges() const { return edges_; }
  const Edge& edge(int32_t number) const { return edges_[static_cast<size_t>(number)]; }
  // The slots that an edge's messages fill, in the order in which the messages are sent.
  const std::vector<int32_t>& in_order(int32_t edge) const {
    return in_order_[static_cast<size_t>(edge)];
  }

  // To be called when all messages of a run have arrived: sets each capacity for the next run to
  // the size that this run needed, or to kFirstCapacity if that exceeds kGreatestCapacity.
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
