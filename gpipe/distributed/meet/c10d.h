// c10d: the door to PyTorch's distributed engine.
//
// Its headers, and the declarations of Gloo that they need, are included by c10d.cc alone. What
// comes out of it are c10d's own objects behind these interfaces.
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

// The store is gone. Its text has none of c10d's stack frames.
class StoreIsGone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A client of a TCPStore: texts under names, which all processes see.
//
// Thread-safety: safe, but one thread at a time gets through; clone() for another.
//
// Throws StoreIsGone.
class Store {
 public:
  virtual ~Store() = default;

  // A client of its own, with its own connection.
  virtual std::unique_ptr<Store> clone() = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // The text, if there is one by now.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // Adds to a number, which is 0 at first, and returns the sum.
  virtual int64_t add(const std::string& key, int64_t value) = 0;
};

// Runs a store in this process, on the listener's address only. `prefix` is put before each key.
std::unique_ptr<Store> serve_store(Socket listener, const Endpoint& endpoint,
                                   const std::string& prefix);
// Waits for the store to answer. Throws StoreIsGone if it does not within `limit`.
std::unique_ptr<Store> connect_store(const std::string& host, int64_t port,
                                     const std::string& prefix, std::chrono::milliseconds limit);

// A message on its way. It keeps the tensor's memory until it ends.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Waits until the message has been sent, i.e. its receiver has asked for it, or has arrived.
  // False if it was cancelled. Throws std::runtime_error if the connection broke. Called once.
  virtual bool wait() = 0;
  // Ends wait(), which may already have begun on another thread. The group is of no use then.
  virtual void cancel() = 0;
};

// Messages between the ranks, over Gloo.
//
// Messages between two ranks with the same tag arrive in order. Even tags have connections of their
// own, and so have odd ones: what goes forward does not wait behind what goes backward.
//
// Thread-safety: safe.
class Group {
 public:
  virtual ~Group() = default;

  // Neither blocks. `bytes`: a contiguous tensor on the CPU, which nobody changes until the
  // transfer has ended. 0 <= tag. A message must not be larger than what is received into; it may
  // be smaller.
  virtual std::unique_ptr<Transfer> send(const at::Tensor& bytes, int64_t to, int32_t tag) = 0;
  virtual std::unique_ptr<Transfer> receive(const at::Tensor& bytes, int64_t from, int32_t tag) = 0;
};

// All ranks call this with the same `name`, which no group before has had. `address`: of the
// interface by which this rank is reached. Blocks until all are connected; throws
// std::runtime_error if they are not within `limit`, or `is_given_up`, which is asked while others
// have not come. Once Gloo connects to one that has come, it cannot be broken off.
std::unique_ptr<Group> connect_group(Store& store, const std::string& name, int64_t rank,
                                     int64_t size, const std::string& address,
                                     std::chrono::milliseconds limit,
                                     std::function<bool()> is_given_up = nullptr);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_C10D_H_
