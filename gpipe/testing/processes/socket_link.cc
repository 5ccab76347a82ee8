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

class SocketLink final : public DeviceLink {
 public:
  SocketLink(const std::string& id, End end) : end_(end) {
    address_ = address_of(id, &address_size_);
    if (end_ == End::kReceives) return;
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address_), address_size_) != 0 ||
        listen(listener_, 1) != 0) {
      close(listener_);
      fail("listening");
    }
  }
  ~SocketLink() override {
    if (listener_ >= 0) close(listener_);
  }

  bool is_connected() override {
    if (wire_ != nullptr) {
      wire_->check();
      return true;
    }
    if (is_aborted_) throw std::runtime_error("sockets: the link was aborted");
    int connected = -1;
    if (end_ == End::kSends) {
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

  // Sends a size and the bytes, and waits for an answer, because a send must not end before the
  // message is received.
  void send(const std::vector<at::Tensor>& messages, const c10::Stream& stream) override {
    wire_->check();
    ++times_sent;
    launch("link sends", messages, stream, /*write=*/false, [](Wire& wire, void* bytes, size_t n) {
      const uint64_t size = n;
      char answer = 0;
      if (!wire.write(&size, sizeof size) || !wire.write(bytes, n) || !wire.read(&answer, 1)) {
        return false;
      }
      return answer == kWell || wire.break_it();
    });
  }
  void receive(const std::vector<at::Tensor>& messages, const c10::Stream& stream) override {
    wire_->check();
    launch("link receives", messages, stream, /*write=*/true,
           [](Wire& wire, void* bytes, size_t n) {
             uint64_t size = 0;
             if (!wire.read(&size, sizeof size)) return false;
             if (size != n) return wire.write(&kOtherSize, 1) && wire.break_it();
             return wire.read(bytes, n) && wire.write(&kWell, 1);
           });
  }

  void check() override {
    if (const auto wire = std::atomic_load(&wire_)) wire->check();
  }
  // Like ncclCommAbort(), it waits for the kernels of the link, and so for all that is before them
  // on their stream.
  void abort() noexcept override {
    is_aborted_ = true;
    if (const auto wire = std::atomic_load(&wire_)) wire->abort();
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!fake::runtime().is_over(last_)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  template <typename Move>
  void launch(const std::string& name, const std::vector<at::Tensor>& messages,
              const c10::Stream& stream, bool write, const Move& move) {
    std::vector<fake::Access> accesses;
    std::vector<std::pair<void*, size_t>> pieces;
    for (const at::Tensor& message : messages) {
      // The kernel gets addresses and not tensors, because a kernel owns no memory, as on a GPU.
      void* const bytes = const_cast<void*>(message.const_data_ptr());
      const auto size = static_cast<size_t>(message.numel());
      accesses.push_back({fake::Footprint(bytes, size), write});
      pieces.emplace_back(bytes, size);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    fake::runtime().launch(fake::id_of(stream), {name,
                                                 fake::Task::Kind::kCopy,
                                                 std::move(accesses),
                                                 [wire = wire_, pieces, move] {
                                                   for (const auto& [bytes, size] : pieces) {
                                                     if (!move(*wire, bytes, size)) return;
                                                   }
                                                 },
                                                 {}});
    last_ = fake::runtime().record(fake::id_of(stream));
  }

  const End end_;
  int listener_ = -1;
  sockaddr_un address_{};
  socklen_t address_size_ = 0;
  std::atomic<bool> is_aborted_{false};
  std::shared_ptr<Wire> wire_;
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
  std::unique_ptr<DeviceLink> connect(const std::string& id, DeviceLink::End end,
                                      c10::Device /*device*/) const override {
    return std::make_unique<SocketLink>(id, end);
  }
};

[[maybe_unused]] const bool added = (add_link_kind(socket_links()), true);

}  // namespace

int64_t sent_by_sockets() { return times_sent; }

const LinkKind& socket_links() {
  static const SocketLinks* const kind = new SocketLinks;
  return *kind;
}

}  // namespace gpipe::distributed
