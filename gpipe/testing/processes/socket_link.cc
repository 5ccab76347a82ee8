#include "gpipe/testing/processes/socket_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/fake_accelerator/backend.h"

namespace gpipe::distributed {
namespace {

namespace fake = testing::fake;

std::atomic<int64_t> times_sent{0};
std::atomic<int64_t> times_connected{0};

// The receiver's answers to a message.
constexpr char kOtherSize = 0;
constexpr char kWell = 1;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("sockets: " + what + ": " + std::strerror(errno));
}

// The part of a link that kernels use. It is an object of its own because some kernels may still
// run when the link itself is gone.
class Wire {
 public:
  explicit Wire(int socket) : socket_(socket) {}
  ~Wire() { close(socket_); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int socket() const { return socket_; }
  // Kernels call read() and write(). If one returns false, the link was aborted, and the kernel
  // must stop.
  bool write(const void* from, size_t bytes) { return move(from, bytes, /*writes=*/true); }
  bool read(void* to, size_t bytes) { return move(to, bytes, /*writes=*/false); }
  // A kernel that cannot go on calls this. The call returns only when the link is aborted, so the
  // kernel runs until then.
  bool break_it() {
    is_broken_ = true;
    while (!is_aborted_) std::this_thread::sleep_for(kPause);
    return false;
  }
  void abort() { is_aborted_ = true; }
  void check() const {
    if (is_aborted_) throw std::runtime_error("sockets: the link was aborted");
    if (is_broken_) {
      throw std::runtime_error("sockets: the other end sends a message of another size");
    }
  }

 private:
  static constexpr std::chrono::milliseconds kPause{1};

  bool move(const void* memory, size_t bytes, bool writes) {
    char* at = static_cast<char*>(const_cast<void*>(memory));
    while (bytes > 0 && !is_aborted_) {
      pollfd polled{socket_, static_cast<short>(writes ? POLLOUT : POLLIN), 0};
      if (poll(&polled, 1, kPause.count()) <= 0) continue;
      const ssize_t moved = writes ? ::send(socket_, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                   : ::recv(socket_, at, bytes, MSG_DONTWAIT);
      if (moved <= 0) {  // the other process has ended, which NCCL's kernels do not notice
        std::this_thread::sleep_for(kPause);
        continue;
      }
      at += moved;
      bytes -= static_cast<size_t>(moved);
    }
    return bytes == 0;
  }

  const int socket_;
  std::atomic<bool> is_aborted_{false};
  std::atomic<bool> is_broken_{false};
};

sockaddr_un address_of(const std::string& id, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (id.size() + 1 > sizeof address.sun_path) throw std::runtime_error("sockets: a long id");
  // The name begins with a zero byte, so it is not the name of a file.
  std::memcpy(address.sun_path + 1, id.data(), id.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + id.size());
  return address;
}

// One direction of a link, from the member at one end to that at the other one.
class Wiring {
 public:
  Wiring(const std::string& id, bool sends) : sends_(sends) {
    address_ = address_of(id, &address_size_);
    if (!sends_) return;
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address_), address_size_) != 0 ||
        listen(listener_, 1) != 0) {
      close(listener_);
      fail("listening");
    }
  }
  ~Wiring() {
    if (listener_ >= 0) close(listener_);
  }

  Wiring(const Wiring&) = delete;
  Wiring& operator=(const Wiring&) = delete;

  // Any thread may call it.
  std::shared_ptr<Wire> wire() const { return std::atomic_load(&wire_); }

  bool is_connected() {
    if (wire_ != nullptr) {
      wire_->check();
      return true;
    }
    int connected = -1;
    if (sends_) {
      connected = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connected < 0 && errno != EAGAIN && errno != EINTR) fail("accepting");
    } else {
      connected = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(connected, reinterpret_cast<sockaddr*>(&address_), address_size_) != 0) {
        const int error = errno;
        close(connected);
        connected = -1;
        errno = error;
        if (error != ECONNREFUSED && error != EINTR) fail("connecting");
      }
    }
    if (connected < 0) return false;
    std::atomic_store(&wire_, std::make_shared<Wire>(connected));
    return true;
  }

 private:
  const bool sends_;
  int listener_ = -1;
  sockaddr_un address_{};
  socklen_t address_size_ = 0;
  std::shared_ptr<Wire> wire_;
};

// What a kernel moves in one direction. These are addresses and not tensors, because a kernel owns
// no memory, as on a GPU.
struct Pieces {
  std::shared_ptr<Wire> wire;
  std::vector<std::pair<void*, size_t>> pieces;
};

// Sends a size and the bytes, and waits for an answer, because a send must not end before the
// message is received.
void send_all(const Pieces& all) {
  for (const auto& [bytes, size] : all.pieces) {
    const uint64_t told = size;
    char answer = 0;
    if (!all.wire->write(&told, sizeof told) || !all.wire->write(bytes, size) ||
        !all.wire->read(&answer, 1) || (answer != kWell && !all.wire->break_it())) {
      return;
    }
  }
}

void receive_all(const Pieces& all) {
  for (const auto& [bytes, size] : all.pieces) {
    uint64_t told = 0;
    if (!all.wire->read(&told, sizeof told)) return;
    if (told != size) {
      if (all.wire->write(&kOtherSize, 1)) all.wire->break_it();
      return;
    }
    if (!all.wire->read(bytes, size) || !all.wire->write(&kWell, 1)) return;
  }
}

class SocketLink final : public DeviceLink {
 public:
  SocketLink(const std::string& id, const LinkEnd& end) {
    const auto direction = [&id](int64_t from, int64_t to) {
      return id + "/" + std::to_string(from) + "-" + std::to_string(to);
    };
    for (int64_t other = 0; other < end.members; ++other) {
      if (end.sends_to(other)) to_.try_emplace(other, direction(end.member, other), true);
      if (end.receives_from(other)) from_.try_emplace(other, direction(other, end.member), false);
    }
  }

  bool is_connected() override {
    if (is_aborted_) throw std::runtime_error("sockets: the link was aborted");
    bool all = true;
    for (auto* const wirings : {&to_, &from_}) {
      for (auto& [member, wiring] : *wirings) all = wiring.is_connected() && all;
    }
    return all;
  }

  // One kernel. As in a group of NCCL's, no message waits for another member's: each direction has
  // a thread of its own, if there are several.
  void move(const std::vector<Message>& sends, const std::vector<Message>& receives,
            const c10::Stream& stream) override {
    check();
    std::vector<fake::Access> accesses;
    std::map<int64_t, Pieces> to;
    std::map<int64_t, Pieces> from;
    const auto add = [&accesses](const std::vector<Message>& messages, bool writes,
                                 const std::map<int64_t, Wiring>& wirings,
                                 std::map<int64_t, Pieces>& all) {
      for (const auto& [member, tensor] : messages) {
        void* const bytes = const_cast<void*>(tensor.const_data_ptr());
        const auto size = static_cast<size_t>(tensor.numel());
        accesses.push_back({fake::Footprint(bytes, size), writes});
        Pieces& pieces = all[member];
        pieces.wire = wirings.at(member).wire();
        pieces.pieces.emplace_back(bytes, size);
      }
    };
    add(sends, /*writes=*/false, to_, to);
    add(receives, /*writes=*/true, from_, from);
    if (!sends.empty()) ++times_sent;
    std::vector<std::function<void()>> directions;
    for (const auto& [member, pieces] : to) directions.push_back([pieces] { send_all(pieces); });
    for (const auto& [member, pieces] : from) {
      directions.push_back([pieces] { receive_all(pieces); });
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    fake::runtime().launch(fake::id_of(stream), {sends.empty() ? "link receives" : "link sends",
                                                 fake::Task::Kind::kCopy,
                                                 std::move(accesses),
                                                 [directions = std::move(directions)] {
                                                   std::vector<std::thread> threads;
                                                   for (size_t k = 1; k < directions.size(); ++k) {
                                                     threads.emplace_back(directions[k]);
                                                   }
                                                   directions.front()();
                                                   for (std::thread& thread : threads)
                                                     thread.join();
                                                 },
                                                 {}});
    last_ = fake::runtime().record(fake::id_of(stream));
  }

  void check() override {
    for_each_wire([](Wire& wire) { wire.check(); });
  }
  // Like ncclCommAbort(), it waits for the kernels of the link, and so for all that is before them
  // on their stream.
  void abort() noexcept override {
    is_aborted_ = true;
    for_each_wire([](Wire& wire) { wire.abort(); });
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!fake::runtime().is_over(last_)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  template <typename Visit>
  void for_each_wire(const Visit& visit) const {
    for (const auto* const wirings : {&to_, &from_}) {
      for (const auto& [member, wiring] : *wirings) {
        if (const auto wire = wiring.wire()) visit(*wire);
      }
    }
  }

  std::map<int64_t, Wiring> to_;  // by the member at the other end, as from_
  std::map<int64_t, Wiring> from_;
  std::atomic<bool> is_aborted_{false};
  std::mutex mutex_;  // held while a kernel is launched, as NCCL's links do
  fake::Event last_;  // recorded after the last kernel
};

class SocketLinks final : public LinkKind {
 public:
  std::string name() const override { return "sockets"; }
  c10::DeviceType device_type() const override { return c10::kPrivateUse1; }
  void check_available() const override {}
  std::string identity(c10::Device device) const override { return device.str(); }
  std::string new_id() const override {
    static std::atomic<int> last{0};
    return "gpipe-link-" + std::to_string(getpid()) + "-" + std::to_string(++last);
  }
  // Like a GPU's: a megabyte for each direction and block.
  int64_t multiprocessors(c10::Device /*device*/) const override { return 64; }
  LinkCost cost(const LinkEnd& end, int64_t most_blocks) const override {
    LinkCost cost;
    cost.blocks = most_blocks;
    for (int64_t other = 0; other < end.members; ++other) {
      const int64_t directions = int64_t{end.sends_to(other)} + int64_t{end.receives_from(other)};
      cost.bytes += directions * most_blocks << 20;
    }
    return cost;
  }
  std::unique_ptr<DeviceLink> connect(const std::string& id, const LinkEnd& end,
                                      c10::Device /*device*/,
                                      int64_t /*most_blocks*/) const override {
    ++times_connected;
    return std::make_unique<SocketLink>(id, end);
  }
};

[[maybe_unused]] const bool added = (add_link_kind(socket_links()), true);

}  // namespace

int64_t sent_by_sockets() { return times_sent; }
int64_t connected_by_sockets() { return times_connected; }

const LinkKind& socket_links() {
  static const SocketLinks* const kind = new SocketLinks;
  return *kind;
}

}  // namespace gpipe::distributed
