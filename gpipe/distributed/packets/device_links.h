// DeviceLinks: the links of one process's device, each with a stream of its own.
#ifndef GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINKS_H_
#define GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINKS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/packets/device_link.h"
#include "gpipe/distributed/packets/link_budget.h"
#include "gpipe/distributed/packets/message_plan.h"

namespace gpipe::distributed {

// Holds a link for each edge that begins or ends in this process, or one link of several processes
// (kSet). On a link's stream a send waits for the work that produces the tensors. The stream that
// uses received tensors waits for the link's stream. No thread waits for either.
//
// Requirements for all processes, so that no stream waits forever:
// - at both ends of an edge messages go in the order in which they are sent;
// - send() comes before the other end can know that there is something to receive, and receive()
//   after it knows. So work on a stream waits only for work that was put on a stream earlier.
// Streams of a device must not wait for each other by accident, either: they share as many hardware
// queues as CUDA_DEVICE_MAX_CONNECTIONS says (8 by default).
//
// Guarantees: after abort(), and while it is destroyed, nothing on the device waits for another
// process.
//
// Thread-safety: one thread calls begin() and are_connected(), before all other calls. One thread
// at a time uses an edge. Any thread may call abort().
class DeviceLinks {
 public:
  // `on_error`: called once, on the watcher thread, with the reason why a link broke. It may block.
  DeviceLinks(const LinkKind& kind, c10::Device device,
              std::function<void(const std::string& what)> on_error);
  ~DeviceLinks();
  DeviceLinks(const DeviceLinks&) = delete;
  DeviceLinks& operator=(const DeviceLinks&) = delete;

  const LinkKind& kind() const { return kind_; }
  c10::Device device() const { return device_; }

  size_t size() const;
  bool has(const Edge& edge, DeviceLink::End end) const;
  // The key of the link that a set of processes has, in which each sends to each other one.
  static constexpr Edge kSet{};
  // Which end of an edge's link that is.
  static LinkEnd end_of(DeviceLink::End end) { return {end == DeviceLink::End::kSends ? 0 : 1}; }

  // Begins to connect a link. `most_blocks`: LinkBudget::add(). Throws std::runtime_error if that
  // fails.
  void begin(const Edge& edge, DeviceLink::End end, const std::string& id,
             int64_t most_blocks = LinkBudget::kMostBlocks);
  // The same for the only link of a set of processes, the ends of which are numbered as `ranks`.
  // `end`: which of them this is.
  void begin_set(const std::vector<int64_t>& ranks, const LinkEnd& end, const std::string& id,
                 int64_t most_blocks = LinkBudget::kMostBlocks);
  // Whether all links that have been begun are connected. Throws std::runtime_error if one never
  // will be.
  bool are_connected();

  // Sends what work on the current stream produces. Keeps the messages' memory until they are sent.
  void send(const Edge& edge, const std::vector<at::Tensor>& messages);
  // The stream on which to allocate memory to receive into: nothing else uses that stream.
  c10::Stream receiving_stream(const Edge& edge) const;
  // Receives into memory that was allocated with receiving_stream() as the current stream.
  void receive(const Edge& edge, const std::vector<at::Tensor>& messages);
  // Later work on `stream` waits for all sends and receives so far, so it may change what was sent.
  void let_follow(const c10::Stream& stream);

  // Messages by edge. Those of an edge are put on its link together, so the other end, too, passes
  // them to one call.
  using Messages = std::map<Edge, std::vector<at::Tensor>>;
  // Sends and receives messages whose memory belongs to the current stream. Work that was put there
  // before comes before all of them, and work that is put there afterwards behind all of them. So
  // the memory may be freed at once. Sends are put on streams first, so the processes that call
  // exchange() with each other need not know how far the others are. All messages go by the link of
  // the set, if there is one: then the n-th calls of its processes belong together.
  void exchange(const Messages& sends, const Messages& receives);

  // Says that the other ends, too, have put all messages so far on their streams. An abort lets
  // those end first, for five seconds at most: work of calls that went well depends on them.
  void settle();

  // Does not wait. Afterwards send() and receive() do nothing.
  void abort() noexcept;

 private:
  struct Line {
    Line(std::unique_ptr<DeviceLink> link, c10::Stream stream)
        : link(std::move(link)), stream(stream) {}
    std::unique_ptr<DeviceLink> link;
    c10::Stream stream;
    std::shared_ptr<c10::Event> settled;  // behind the messages of which settle() told; may be null
  };
  using Key = std::pair<Edge, DeviceLink::End>;  // both ends may be here, in tests
  // What one link moves in a call.
  struct Load {
    const Line* line = nullptr;
    std::vector<DeviceLink::Message> sends;
    std::vector<DeviceLink::Message> receives;
  };

  void begin(const Key& key, const LinkEnd& end, const std::string& id, int64_t most_blocks);
  std::string name_of(const Edge& edge) const;
  const Line& line(const Edge& edge, DeviceLink::End end) const;
  // What each link moves of these messages, sends first.
  std::vector<Load> loads(const Messages& sends, const Messages& receives) const;
  // Keeps the messages' memory until they have moved, if `keeps_memory`.
  void put(const Load& load, bool keeps_memory = true);
  void abort(const Line& line) const noexcept;
  bool is_aborted() const;
  void watch();
  void check_links();
  void wait_for_streams() noexcept;

  const LinkKind& kind_;
  const c10::Device device_;
  const std::function<void(const std::string&)> on_error_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Line> lines_;   // no line is ever removed
  std::vector<int64_t> ranks_;  // of the set; empty: there is none
  bool is_aborted_ = false;
  bool is_last_ = false;
  std::thread watcher_;  // checks links for errors, and aborts them, which may take a while
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINKS_H_
