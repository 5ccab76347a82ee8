// DeviceLinks: the links of one process's device, each with a stream of its own.
#ifndef GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINKS_H_
#define GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINKS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/packets/device_link.h"
#include "gpipe/distributed/packets/message_plan.h"

namespace gpipe::distributed {

// A link for each edge that begins or ends here. What is sent waits on its link's stream for what
// made it, and what is received is waited for by the stream that uses it: no thread waits for any.
//
// Requirements of all processes, so that no stream waits for ever:
// - at both ends of an edge messages go in the order in which they are sent;
// - send() comes before the other end can know that there is something to receive, and receive()
//   after it knows. So each thing that is put on a stream waits for what was put there before, and
//   never for what is yet to come.
// Streams of a device must not wait for each other by accident, either: it has so many queues for
// them as CUDA_DEVICE_MAX_CONNECTIONS says (8 by default).
//
// Guarantees: after abort(), and while it is destroyed, nothing on the device waits for another
// process.
//
// Thread-safety: begin() and are_connected() by one thread, before all others; an edge by one
// thread at a time; abort() by any.
class DeviceLinks {
 public:
  // `on_error`: called once, on a thread of its own, with what broke a link. It may wait.
  DeviceLinks(const LinkKind& kind, c10::Device device,
              std::function<void(const std::string& what)> on_error);
  ~DeviceLinks();
  DeviceLinks(const DeviceLinks&) = delete;
  DeviceLinks& operator=(const DeviceLinks&) = delete;

  const LinkKind& kind() const { return kind_; }
  c10::Device device() const { return device_; }

  size_t size() const;
  bool has(const Edge& edge, DeviceLink::End end) const;
  // Begins to connect. Throws std::runtime_error.
  void begin(const Edge& edge, DeviceLink::End end, const std::string& id);
  // Whether all are that have been begun. Throws std::runtime_error if one never will be.
  bool are_connected();

  // Sends what the current stream has made, or will. The memory is kept until it has gone.
  void send(const Edge& edge, const std::vector<at::Tensor>& messages);
  // While it is current, memory to receive into is to be taken: nothing else uses that stream.
  c10::Stream receiving_stream(const Edge& edge) const;
  // Receives into memory that was taken so.
  void receive(const Edge& edge, const std::vector<at::Tensor>& messages);
  // What is put on the stream from now on waits for all that has been sent and received: what was
  // sent may be changed then.
  void let_follow(const c10::Stream& stream);

  // Does not wait. From then on send() and receive() do nothing.
  void abort() noexcept;

 private:
  struct Line {
    Line(std::unique_ptr<DeviceLink> link, c10::Stream stream)
        : link(std::move(link)), stream(stream) {}
    std::unique_ptr<DeviceLink> link;
    c10::Stream stream;
  };
  using Key = std::pair<Edge, DeviceLink::End>;  // both ends may be here, in tests

  const Line& line(const Edge& edge, DeviceLink::End end) const;
  void put(const Line& line, DeviceLink::End end, const std::vector<at::Tensor>& messages);
  bool is_aborted() const;
  void watch();
  void check_links();
  void wait_for_streams() noexcept;

  const LinkKind& kind_;
  const c10::Device device_;
  const std::function<void(const std::string&)> on_error_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Line> lines_;  // none is taken out
  bool is_aborted_ = false;
  bool is_last_ = false;
  std::thread watcher_;  // aborts, which may take a while, and asks for errors
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINKS_H_
