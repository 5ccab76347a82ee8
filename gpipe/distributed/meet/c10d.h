// c10d: the interface to PyTorch's distributed engine.
//
// Only c10d.cc includes c10d's headers and the declarations of Gloo that they need. Other files use
// c10d's objects through these interfaces.
#ifndef GPIPE_DISTRIBUTED_MEET_C10D_H_
#define GPIPE_DISTRIBUTED_MEET_C10D_H_

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "gpipe/distributed/sockets/sockets.h"

namespace gpipe::distributed {

// Thrown if the store is gone. The message has none of c10d's stack frames.
class StoreIsGone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A client of a TCPStore, which maps keys to texts that all processes see.
//
// Thread-safety: safe, but calls of several threads wait for each other; clone() avoids that.
//
// Throws StoreIsGone.
class Store {
 public:
  virtual ~Store() = default;

  // Another client, with its own connection.
  virtual std::unique_ptr<Store> clone() = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // The text of the key, if it has been set.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // Adds to a number, which is 0 at first, and returns the sum.
  virtual int64_t add(const std::string& key, int64_t value) = 0;
  // The same client, with `prefix` before each key.
  virtual std::unique_ptr<Store> under(const std::string& prefix) = 0;
};

// Runs a store in this process, on the listener's address only. `prefix` is put before each key.
std::unique_ptr<Store> serve_store(Socket listener, const Endpoint& endpoint,
                                   const std::string& prefix);
// Waits for the store to answer. Throws StoreIsGone if it does not within `limit`.
std::unique_ptr<Store> connect_store(const std::string& host, int64_t port,
                                     const std::string& prefix, std::chrono::milliseconds limit);

// A message that is being sent or received. It keeps the tensor's memory until it ends.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Waits until the message has been sent (its receiver has asked for it) or has arrived. False if
  // it was canceled. Throws std::runtime_error if the connection broke. Called once.
  virtual bool wait() = 0;
  // Ends wait(), which may already have begun on another thread. Afterwards the group is unusable.
  virtual void cancel() = 0;
};

// Messages between the ranks, over Gloo.
//
// Messages between two ranks with the same tag arrive in order. Even and odd tags use separate
// connections: messages of the forward pass do not wait behind those of the backward pass.
//
// Thread-safety: safe.
class Group {
 public:
  virtual ~Group() = default;

  // Neither function blocks. `bytes`: a contiguous CPU tensor, which must not change until the
  // transfer has ended. 0 <= tag. A message must not be larger than the tensor that receives it;
  // it may be smaller.
  virtual std::unique_ptr<Transfer> send(const at::Tensor& bytes, int64_t to, int32_t tag) = 0;
  virtual std::unique_ptr<Transfer> receive(const at::Tensor& bytes, int64_t from, int32_t tag) = 0;
};

// All ranks call this with the same `name`, which no earlier group has had. `address`: the address
// of the interface through which others reach this rank. Blocks until all ranks are connected.
// Throws std::runtime_error if they are not connected within `limit`, or if is_given_up() returns
// true; that is called while other ranks have not come. Once Gloo begins to connect to a rank that
// has come, it cannot be interrupted.
std::unique_ptr<Group> connect_group(Store& store, const std::string& name, int64_t rank,
                                     int64_t size, const std::string& address,
                                     std::chrono::milliseconds limit,
                                     std::function<bool()> is_given_up = nullptr);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_C10D_H_
