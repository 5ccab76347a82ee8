// DeviceLink: moves bytes between devices of different processes, without the host.
//
// It hides only what is specific to a library that moves memory between devices (NCCL). The order
// of messages, streams, lifetimes of memory and the meaning of messages are the same for each kind
// of link, and belong to DeviceLinks and the codec.
#ifndef GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_
#define GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::distributed {

// Which of a link's processes this one is, and who sends to whom.
struct LinkEnd {
  int64_t member = 0;  // its number among the members
  int64_t members = 2;
  // Whether only member 0 sends, to member 1. Otherwise each member sends to each other one.
  bool is_one_way = true;

  bool sends_to(int64_t other) const { return other != member && (!is_one_way || member == 0); }
  bool receives_from(int64_t other) const { return other != member && (!is_one_way || other == 0); }
};

// What a link takes of the device at one of its ends, at most.
struct LinkCost {
  int64_t blocks = 0;  // multiprocessors that it occupies while it waits for other processes
  int64_t bytes = 0;   // of the device's memory, for buffers
};

// A link moves messages one call after another. If it has one direction (LinkEnd::is_one_way), its
// two members need not agree on an order of sending and receiving. The members of any other link
// must: their n-th calls belong together.
//
// Requirements: each end is used by one thread at a time, except for abort() and check(). It is
// destroyed when its work on streams is done, or after abort().
class DeviceLink {
 public:
  enum class End { kSends, kReceives };

  // A message to or from another member. A byte tensor, not empty, contiguous, on the link's
  // device.
  struct Message {
    int64_t member = 0;
    at::Tensor bytes;
  };

  virtual ~DeviceLink() = default;

  // Whether all ends are connected. Until then the link does not move anything. Does not wait.
  // Throws std::runtime_error if they never will be connected.
  virtual bool is_connected() = 0;

  // Puts all messages on `stream`, as one piece of work that waits for none of its messages while
  // another one can move. Returns before the messages have moved. Those between two members must
  // have the same sizes at both ends, be in the same order, and belong to one call of each. The
  // caller keeps their memory alive. Throws std::runtime_error for a broken link.
  virtual void move(const std::vector<Message>& sends, const std::vector<Message>& receives,
                    const c10::Stream& stream) = 0;

  // Throws std::runtime_error if the link broke. Any thread may call it. It does not wait for a
  // thread that sends or receives.
  virtual void check() = 0;
  // Ends the link's work on streams, whatever the other ends do. Later work on those streams
  // continues, with garbage as received bytes. Any thread may call it; it may take a while.
  virtual void abort() noexcept = 0;
};

// A library that provides device links.
//
// Thread-safety: safe.
class LinkKind {
 public:
  virtual ~LinkKind() = default;

  // The kind's name in GPIPE_DEVICE_LINKS.
  virtual std::string name() const = 0;
  virtual c10::DeviceType device_type() const = 0;
  // Throws std::invalid_argument, which says why, if such links are not available here.
  virtual void check_available() const = 0;
  // A name of the device: the same in each process that uses it, and different for other devices.
  virtual std::string identity(c10::Device device) const = 0;
  // An id for one link, of any bytes. One end makes it, and all ends pass it to connect().
  virtual std::string new_id() const = 0;
  // A stream for the messages of a link, which LibTorch gives to nobody; no value: the kind has no
  // such streams, and one of LibTorch's pool is used, which users may be given, too.
  virtual std::optional<c10::Stream> new_stream(c10::Device /*device*/) const {
    return std::nullopt;
  }
  // Takes back a stream that new_stream() gave, for a later link. What was put on it need not be
  // done.
  virtual void give_back_stream(const c10::Stream& /*stream*/) const noexcept {}
  // How many multiprocessors the device has; 0: links occupy none.
  virtual int64_t multiprocessors(c10::Device /*device*/) const { return 0; }
  // What a link takes that may occupy `most_blocks` multiprocessors.
  virtual LinkCost cost(const LinkEnd& /*end*/, int64_t /*most_blocks*/) const { return {}; }
  // Begins to connect, and does not wait for the other ends. The link takes at most cost().
  virtual std::unique_ptr<DeviceLink> connect(const std::string& id, const LinkEnd& end,
                                              c10::Device device, int64_t most_blocks) const = 0;
};

// The kind with this name: NCCL's, or one that was added. Throws std::invalid_argument, which lists
// the known names.
const LinkKind& link_kind(const std::string& name);
// For static initializers of tests. `kind` lives as long as the process.
void add_link_kind(const LinkKind& kind);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_
