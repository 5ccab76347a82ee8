// DeviceLink: moves bytes from a device of one process to that of another one, without the host.
//
// It hides only what is specific to a library that moves memory between devices (NCCL). The order
// of messages, streams, lifetimes of memory and the meaning of messages are the same for each kind
// of link, and belong to DeviceLinks and the codec.
#ifndef GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_
#define GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::distributed {

// A link has one direction, so that its ends need not agree on an order of sending and receiving.
//
// Requirements: each end is used by one thread at a time, except for abort() and check(). It is
// destroyed when its work on streams is done, or after abort().
class DeviceLink {
 public:
  enum class End { kSends, kReceives };

  virtual ~DeviceLink() = default;

  // Whether both ends are connected. Until then the link does not move anything. Does not wait.
  // Throws std::runtime_error if they never will be connected.
  virtual bool is_connected() = 0;

  // These put all messages on `stream`, in order, and return before the messages have moved. The
  // other end must put messages of the same sizes, in the same order, and as many in each call.
  // `messages`: at least one; byte tensors, not empty, contiguous, on the link's device. The caller
  // keeps their memory alive. Throws std::runtime_error for a broken link.
  virtual void send(const std::vector<at::Tensor>& messages, const c10::Stream& stream) = 0;
  virtual void receive(const std::vector<at::Tensor>& messages, const c10::Stream& stream) = 0;

  // Throws std::runtime_error if the link broke. Any thread may call it. It does not wait for a
  // thread that sends or receives.
  virtual void check() = 0;
  // Ends the link's work on streams, whatever the other end does. Later work on those streams
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
  // An id for one link, of any bytes. One end makes it, and both ends pass it to connect().
  virtual std::string new_id() const = 0;
  // A stream for the messages of a link, which LibTorch gives to nobody; no value: the kind has no
  // such streams, and one of LibTorch's pool is used, which users may be given, too.
  virtual std::optional<c10::Stream> new_stream(c10::Device /*device*/) const {
    return std::nullopt;
  }
  // Takes back a stream that new_stream() gave, for a later link. What was put on it need not be
  // done.
  virtual void give_back_stream(const c10::Stream& /*stream*/) const noexcept {}
  // Begins to connect, and does not wait for the other end.
  virtual std::unique_ptr<DeviceLink> connect(const std::string& id, DeviceLink::End end,
                                              c10::Device device) const = 0;
};

// The kind with this name: NCCL's, or one that was added. Throws std::invalid_argument, which lists
// the known names.
const LinkKind& link_kind(const std::string& name);
// For static initializers of tests. `kind` lives as long as the process.
void add_link_kind(const LinkKind& kind);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_
