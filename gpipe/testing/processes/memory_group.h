// MemoryNetwork: for tests, groups of ranks within one process, in which a send ends only when its
// message is received.
#ifndef GPIPE_TESTING_PROCESSES_MEMORY_GROUP_H_
#define GPIPE_TESTING_PROCESSES_MEMORY_GROUP_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "gpipe/distributed/meet/c10d.h"

namespace gpipe::distributed {

// Its groups behave like groups over Gloo: a message moves only when its receiver has asked for it,
// and messages between two ranks with the same tag move in order. A message that is larger than the
// tensor that receives it is an error (with Gloo it ends the process).
//
// Requirements: it outlives its groups and their transfers.
class MemoryNetwork {
 public:
  std::unique_ptr<Group> group(int64_t rank);

  // The number of messages that have moved.
  int64_t moved() const;
  // The largest number of messages of one rank that had been sent and not asked for at one time.
  int64_t most_waiting() const;

 private:
  struct End;
  class MemoryTransfer;
  class MemoryGroup;
  // The ranks that send and receive, and the tag.
  using Key = std::tuple<int64_t, int64_t, int32_t>;
  struct Line {
    std::deque<std::shared_ptr<End>> sends;
    std::deque<std::shared_ptr<End>> receives;
  };

  std::unique_ptr<Transfer> begin(const Key& key, bool sends, const at::Tensor& bytes);

  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::map<Key, Line> lines_;
  int64_t moved_ = 0;
  std::map<int64_t, int64_t> waiting_;  // by the rank that sends
  int64_t most_waiting_ = 0;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_MEMORY_GROUP_H_
