// DeviceLink: one way from a device of one process to a device of another one, past the host.
//
// What is particular to a library that moves memory between devices (NCCL) is behind it, and no
// more than that: whose turn it is, streams, what keeps memory alive, and what a message means are
// DeviceLinks' and the codec's, and the same for each kind of link.
#ifndef GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_
#define GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <vector>

namespace gpipe::distributed {

// Of one direction, so that neither end has to agree with the other on an order of sending and
// receiving.
//
// Requirements: each end is used by one thread at a time, but for abort() and check(). It is
// destroyed when what is on its stream is done, or after abort().
class DeviceLink {
 public:
  enum class End { kSends, kReceives };

  virtual ~DeviceLink() = default;

  // Whether both ends are connected. Until then it does not move anything. Does not wait. Throws
  // std::runtime_error if they never will be.
  virtual bool is_connected() = 0;

  // Put all messages on `stream`, in order, and return before they have moved. The other end puts
  // messages of the same sizes, in the same order, and as many in each call. `messages`: at least
  // one, of bytes, none empty, contiguous, on the link's device; their memory is the caller's to
  // keep. Throws std::runtime_error for a broken link.
  virtual void send(const std::vector<at::Tensor>& messages, const c10::Stream& stream) = 0;
  virtual void receive(const std::vector<at::Tensor>& messages, const c10::Stream& stream) = 0;

  // Throws std::runtime_error if the link broke. From any thread. Waits for nobody who sends or
  // receives.
  virtual void check() = 0;
  // Ends what is on streams for this link, whatever the other end does: what comes later on those
  // streams goes on, with bytes that mean nothing. From any thread; it may take a while.
  virtual void abort() noexcept = 0;
};

// A library that has such links.
//
// Thread-safety: safe.
class LinkKind {
 public:
  virtual ~LinkKind() = default;

  // What GPIPE_DEVICE_LINKS calls it.
  virtual std::string name() const = 0;
  virtual c10::DeviceType device_type() const = 0;
  // Throws std::invalid_argument that says why there are no such links here.
  virtual void check_available() const = 0;
  // Of the device, the same in each process that uses it and no other device's.
  virtual std::string identity(c10::Device device) const = 0;
  // For one link: made by one end, and given to both. Of any bytes.
  virtual std::string new_id() const = 0;
  // Begins to connect, and does not wait for the other end.
  virtual std::unique_ptr<DeviceLink> connect(const std::string& id, DeviceLink::End end,
                                              c10::Device device) const = 0;
};

// The kind of that name: NCCL's, or one that was added. Throws std::invalid_argument with the names
// that there are.
const LinkKind& link_kind(const std::string& name);
// For static initializers of tests. `kind` lives as long as the process.
void add_link_kind(const LinkKind& kind);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_DEVICE_LINK_H_
