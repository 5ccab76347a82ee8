#include "gpipe/distributed/meet/c10d.h"

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/meet/batch_threads.h"
#include "gpipe/distributed/sockets/new_listeners.h"
#include "gpipe/distributed/sockets/no_sigpipe.h"
#include "gpipe/distributed/sockets/private_descriptors.h"
#include "text/exception_text.h"

namespace gpipe::distributed {
namespace {

// A wait that times out closes the connections of its group. A rank that did not fail then reads
// "closed by peer". So waits do not time out; Control says whether a rank has failed.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

// Makes the call and throws its error as an `Error`. No exception type of c10d leaves this file,
// because c10d's errors are LibTorch's, with stack frames in the text.
template <typename Error, typename Call>
auto throwing(const Call& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw Error(text::message_of(error));
  }
}

// Makes a call of a store's client; each error counts as the loss of the store.
template <typename Call>
auto at_store(const Call& call) {
  return throwing<StoreIsGone>(call);
}

class C10dStore : public Store {
 public:
  C10dStore(c10::intrusive_ptr<c10d::Store> bare, std::string prefix)
      : bare_(std::move(bare)),
        prefix_(std::move(prefix)),
        store_(c10::make_intrusive<c10d::PrefixStore>(prefix_, bare_)) {}

  std::unique_ptr<Store> clone() override {
    return at_store([&] { return std::make_unique<C10dStore>(bare_->clone(), prefix_); });
  }
  void set(const std::string& key, const std::string& value) override {
    at_store([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
  }
  std::optional<std::string> get(const std::string& key) override {
    return at_store([&]() -> std::optional<std::string> {
      // check() comes first, because get() would wait for a key that has not been set.
      if (!store_->check({key})) return std::nullopt;
      const std::vector<uint8_t> value = store_->get(key);
      return std::string(value.begin(), value.end());
    });
  }
  int64_t add(const std::string& key, int64_t value) override {
    return at_store([&] { return store_->add(key, value); });
  }
  std::unique_ptr<Store> under(const std::string& prefix) override {
    return std::make_unique<C10dStore>(bare_, prefix_ + prefix);
  }

  const c10::intrusive_ptr<c10d::Store>& c10d() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> bare_;
  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// A client that also owns the server. A child of fork() must not keep the server's port open,
// because the next run listens there.
class ServedStore final : public C10dStore {
 public:
  ServedStore(c10::intrusive_ptr<c10d::Store> bare, std::string prefix, int listener)
      : C10dStore(std::move(bare), std::move(prefix)), listener_(listener) {
    make_private(listener_);
  }
  // This must run before c10d closes the listener, because the descriptor's number may belong to
  // another file afterwards.
  ~ServedStore() override { make_public(listener_); }

 private:
  int listener_;
};

// A store for Gloo that waits for keys by asking again and again, because a wait inside c10d's
// store cannot be canceled.
class BreakableStore final : public c10d::PrefixStore {
 public:
  BreakableStore(const std::string& prefix, c10::intrusive_ptr<c10d::Store> store,
                 std::chrono::milliseconds limit, std::function<bool()> is_given_up)
      : PrefixStore(prefix, std::move(store)),
        limit_(limit),
        is_given_up_(std::move(is_given_up)) {}

  std::vector<uint8_t> get(const std::string& key) override {
    wait({key}, limit_);
    return PrefixStore::get(key);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, limit_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    auto pause = std::chrono::microseconds(100);
    while (!check(keys)) {
      if (is_given_up_ && is_given_up_()) throw std::runtime_error("it was given up");
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("not all came in time");
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(10));
    }
  }
  // Says no, because with the extended API Gloo would wait in functions that this class does not
  // replace.
  bool hasExtendedApi() const override { return false; }

 private:
  std::chrono::milliseconds limit_;
  std::function<bool()> is_given_up_;
};

class C10dTransfer final : public Transfer {
 public:
  explicit C10dTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  bool wait() override {
    return throwing<std::runtime_error>([&] { return work_->wait(kForever); });
  }
  void cancel() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooGroup final : public Group {
 public:
  explicit GlooGroup(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  std::unique_ptr<Transfer> send(const at::Tensor& bytes, int64_t to, int32_t tag) override {
    const NoSigpipe scope;
    std::vector<at::Tensor> tensors{bytes};
    // A lock is needed because the backend counts its calls without one.
    std::lock_guard<std::mutex> lock(mutex_);
    return throwing<std::runtime_error>([&] {
      return std::make_unique<C10dTransfer>(backend_->send(tensors, static_cast<int>(to), tag));
    });
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& bytes, int64_t from, int32_t tag) override {
    const NoSigpipe scope;  // recv() writes, too: it tells the sender that this rank is ready
    std::vector<at::Tensor> tensors{bytes};
    std::lock_guard<std::mutex> lock(mutex_);
    return throwing<std::runtime_error>([&] {
      return std::make_unique<C10dTransfer>(backend_->recv(tensors, static_cast<int>(from), tag));
    });
  }

 private:
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace

std::unique_ptr<Store> serve_store(Socket listener, const Endpoint& endpoint,
                                   const std::string& prefix) {
  // The store's thread starts here and must get no SIGPIPE, because it may write to a client that
  // has gone.
  const NoSigpipe no_sigpipe;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(endpoint.port);
  options.isServer = true;
  // The store does not wait for the other ranks: session.cc does that, with its own limit.
  options.waitWorkers = false;
  // The store gets the given listener. Without one it would listen on all addresses of the machine.
  options.masterListenFd = listener.get();
  auto store = throwing<std::runtime_error>(
      [&] { return c10::make_intrusive<c10d::TCPStore>(endpoint.address, options); });
  return std::make_unique<ServedStore>(std::move(store), prefix, listener.release());
}

std::unique_ptr<Store> connect_store(const std::string& host, int64_t port,
                                     const std::string& prefix, std::chrono::milliseconds limit) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = limit;
  return at_store([&] {
    return std::make_unique<C10dStore>(c10::make_intrusive<c10d::TCPStore>(host, options), prefix);
  });
}

std::unique_ptr<Group> connect_group(Store& store, const std::string& name, int64_t rank,
                                     int64_t size, const std::string& address,
                                     std::chrono::milliseconds limit,
                                     std::function<bool()> is_given_up) {
  // Gloo's threads start here and must get no SIGPIPE.
  const NoSigpipe no_sigpipe;
  const BatchThreads batch_threads;
  auto options = c10d::ProcessGroupGloo::Options::create(limit);
  NewListeners listeners;
  // There are two devices: a message uses device number `tag` modulo two. Each device has its own
  // connections and its own thread.
  for (int i = 0; i < 2; ++i) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  }
  listeners.find();
  options->threads = 1;  // for collectives, which are not used
  auto& c10d_store = dynamic_cast<C10dStore&>(store);
  auto group = throwing<std::runtime_error>([&] {
    return std::make_unique<GlooGroup>(c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<BreakableStore>(name, c10d_store.c10d(), limit, std::move(is_given_up)),
        static_cast<int>(rank), static_cast<int>(size), std::move(options)));
  });
  // All connections of the group exist, including those that other ranks made to this process.
  listeners.ignore_all();
  return group;
}

}  // namespace gpipe::distributed
