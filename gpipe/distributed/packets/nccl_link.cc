#include "gpipe/distributed/packets/nccl_link.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if GPIPE_TORCH_HAS_CUDA && __has_include(<nccl.h>)
#define GPIPE_HAS_NCCL 1
#else
#define GPIPE_HAS_NCCL 0
#endif

#if GPIPE_HAS_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>
#endif

namespace gpipe::distributed {
namespace {

#if GPIPE_HAS_NCCL

// Sets `function` to the function of a library with that name; null and false if it has none.
template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  void* const found = dlsym(library, name);
  std::memcpy(&function, &found, sizeof found);
  return found != nullptr;
}

// The functions of NCCL that are used. They are looked up in the library that LibTorch has loaded:
// if we linked with libnccl, each program over processes would have to find that library.
struct Nccl {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  std::string missing;  // the functions that were not found

  Nccl() {
    // If LibTorch needs libnccl, that library is loaded already. Otherwise LibTorch has no NCCL, or
    // contains it.
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) library = RTLD_DEFAULT;
    const auto find = [&](auto& function, const char* name) {
      if (!look_up(library, name, function) && missing.empty()) missing = name;
    };
    find(get_version, "ncclGetVersion");
    find(get_error_string, "ncclGetErrorString");
    find(get_last_error, "ncclGetLastError");
    find(get_unique_id, "ncclGetUniqueId");
    find(init_rank_config, "ncclCommInitRankConfig");
    find(get_async_error, "ncclCommGetAsyncError");
    find(finalize, "ncclCommFinalize");
    find(destroy, "ncclCommDestroy");
    find(abort, "ncclCommAbort");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
    int version = 0;
    if (missing.empty() && (get_version(&version) != ncclSuccess || version / 10000 != NCCL_MAJOR ||
                            version < NCCL_VERSION_CODE)) {
      missing = "version " + std::to_string(NCCL_VERSION_CODE) + " (there is " +
                std::to_string(version) + ")";
    }
  }

  static const Nccl& get() {
    static const Nccl* const instance =
        new Nccl;  // never destroyed: links may end with the process
    return *instance;
  }

  std::string why(ncclResult_t result, ncclComm_t comm) const {
    const char* const last = get_last_error(comm);
    return std::string("NCCL: ") + get_error_string(result) +
           (last == nullptr || *last == 0 ? "" : std::string(": ") + last) +
           " (NCCL_DEBUG=INFO makes it say more)";
  }
};

// How long the destructor of a link waits for the other end.
constexpr std::chrono::seconds kEndLimit{2};

// The functions of CUDA that are used, from the library that LibTorch has loaded, as for NCCL.
struct Cuda {
  decltype(&cudaStreamCreateWithPriority) create_stream = nullptr;
  decltype(&cudaGetLastError) take_last_error = nullptr;
  decltype(&cudaGetErrorString) get_error_string = nullptr;
  bool is_whole = false;

  Cuda() {
    is_whole = look_up(RTLD_DEFAULT, "cudaStreamCreateWithPriority", create_stream) &&
               look_up(RTLD_DEFAULT, "cudaGetLastError", take_last_error) &&
               look_up(RTLD_DEFAULT, "cudaGetErrorString", get_error_string);
  }

  static const Cuda& get() {
    static const Cuda* const instance = new Cuda;  // never destroyed, as Nccl
    return *instance;
  }
};

// Streams of our own, because LibTorch gives the streams of its pool to users, too. A user's stream
// that waits for another process's message would hold up the stage that this message waits for. As
// LibTorch's, they do not wait for the default stream, and have the usual priority.
//
// They are never destroyed: LibTorch's allocator keeps the stream on which memory was allocated,
// and uses it when the memory is freed, which may be after the link's end.
class Streams {
 public:
  static Streams& get() {
    static Streams* const instance = new Streams;
    return *instance;
  }

  // Throws std::runtime_error if there is none.
  c10::Stream take(c10::Device device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<c10::Stream>& free = free_[device.index()];
    if (free.empty()) return make(device);
    const c10::Stream stream = free.back();
    free.pop_back();
    return stream;
  }

  void give_back(const c10::Stream& stream) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_[stream.device_index()].push_back(stream);
  }

 private:
  static c10::Stream make(c10::Device device) {
    const Cuda& cuda = Cuda::get();
    if (!cuda.is_whole) {
      throw std::runtime_error("no stream for a link: this LibTorch has not loaded libcudart");
    }
    const c10::DeviceGuard guard(device);
    cudaStream_t stream = nullptr;
    const cudaError_t result = cuda.create_stream(&stream, cudaStreamNonBlocking, /*priority=*/0);
    if (result != cudaSuccess) {
      (void)cuda.take_last_error();  // clears it, so that no later call reports it
      throw std::runtime_error(std::string("CUDA: no stream for a link: ") +
                               cuda.get_error_string(result));
    }
    return c10::cuda::getStreamFromExternal(stream, device.index()).unwrap();
  }

  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<c10::Stream>> free_;
};

class NcclLink final : public DeviceLink {
 public:
  NcclLink(const std::string& id, const LinkEnd& end, c10::Device device, int64_t most_blocks)
      : device_(device), end_(end) {
    ncclUniqueId unique;
    if (id.size() != sizeof unique) throw std::runtime_error("NCCL: an id of another size");
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    // The communicator is non-blocking: each call returns at once, and a link can be aborted while
    // a call is in progress.
    config.blocking = 0;
    config.maxCTAs = static_cast<int>(most_blocks);  // NCCL_MAX_CTAS comes first
    const c10::DeviceGuard guard(device_);
    const ncclResult_t result = nccl_.init_rank_config(
        &comm_, static_cast<int>(end_.members), unique, static_cast<int>(end_.member), &config);
    if (result == ncclSuccess || result == ncclInProgress) return;
    const std::string why = nccl_.why(result, comm_);
    if (comm_ != nullptr) nccl_.abort(comm_);
    throw std::runtime_error(why);
  }

  ~NcclLink() override {
    try {
      // Without this guard NCCL would make the thread's former device current again, which makes a
      // context on GPU 0 for a thread that has used no GPU.
      const c10::DeviceGuard guard(device_);
      if (comm_ != nullptr) end();
    } catch (const std::exception&) {  // the device is broken
    }
    if (first_) Streams::get().give_back(first_->stream);
  }

  bool is_connected() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const ncclResult_t state = async_state();
    check_result(state);
    if (state == ncclInProgress) return false;
    if (!first_) {
      // The communicators of all ends exist. NCCL connects two of them when a first message is
      // sent, on a thread of its own that waits for the other end. So first messages are sent now.
      first_.emplace(first_message());
      return false;
    }
    return first_->stream.query();
  }

  void move(const std::vector<Message>& sends, const std::vector<Message>& receives,
            const c10::Stream& stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    check_not_aborted();
    const c10::DeviceGuard guard(device_);
    put(sends, receives, stream);
    // A call that is still in progress is not on the stream yet, so this waits for it. That should
    // not happen, as nothing is left to connect.
    ncclResult_t state = async_state();
    for (; state == ncclInProgress; state = async_state()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    check_result(state);
  }

  void check() override {
    // If another thread has the lock, it uses the link and finds an error itself. This call must
    // not wait for that thread.
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) check_result(async_state());
  }

  void abort() noexcept override {
    is_aborted_ = true;  // ends enqueue(), which has the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return;
    try {
      const c10::DeviceGuard guard(device_);
      nccl_.abort(std::exchange(comm_, nullptr));
    } catch (...) {  // the device is broken: no kernel of the link runs
    }
  }

 private:
  struct First {
    at::Tensor bytes;
    c10::Stream stream;
  };

  void end() {
    // The link is finalized and not just destroyed, because the other end may still read from the
    // link's own memory at this end.
    const auto limit = std::chrono::steady_clock::now() + kEndLimit;
    ncclResult_t state = nccl_.finalize(comm_);
    while (state == ncclInProgress && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (nccl_.get_async_error(comm_, &state) != ncclSuccess) break;
    }
    if (state == ncclSuccess) {
      nccl_.destroy(comm_);
    } else {
      nccl_.abort(comm_);
    }
  }

  // Puts a message of one byte for each direction on a stream of its own. Does not wait.
  First first_message() {
    const c10::DeviceGuard guard(device_);
    First first{at::Tensor(), Streams::get().take(device_)};
    try {
      const c10::StreamGuard on(first.stream);
      first.bytes = at::zeros({2, end_.members, 1}, at::TensorOptions(device_).dtype(at::kByte));
      std::vector<Message> sends;
      std::vector<Message> receives;
      for (int64_t other = 0; other < end_.members; ++other) {
        if (end_.sends_to(other)) sends.push_back({other, first.bytes[0][other]});
        if (end_.receives_from(other)) receives.push_back({other, first.bytes[1][other]});
      }
      put(sends, receives, first.stream);
    } catch (...) {
      Streams::get().give_back(first.stream);
      throw;
    }
    return first;
  }

  // The functions below are called with mutex_ held.

  // A group is one kernel, which moves all of its messages side by side. A communicator's kernels
  // come one after another, whatever their streams.
  void put(const std::vector<Message>& sends, const std::vector<Message>& receives,
           const c10::Stream& on) {
    const cudaStream_t stream = c10::cuda::CUDAStream(on).stream();
    const auto size = [](const Message& message) {
      return static_cast<size_t>(message.bytes.numel());
    };
    check_result(nccl_.group_start());
    ncclResult_t result = ncclSuccess;
    const auto is_well = [&] { return result == ncclSuccess || result == ncclInProgress; };
    for (const Message& message : sends) {
      if (!is_well()) break;
      result = nccl_.send(message.bytes.const_data_ptr(), size(message), ncclUint8,
                          static_cast<int>(message.member), comm_, stream);
    }
    for (const Message& message : receives) {
      if (!is_well()) break;
      result = nccl_.receive(message.bytes.mutable_data_ptr(), size(message), ncclUint8,
                             static_cast<int>(message.member), comm_, stream);
    }
    const ncclResult_t end = nccl_.group_end();
    check_result(result);
    check_result(end);
  }

  ncclResult_t async_state() {
    check_not_aborted();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_.get_async_error(comm_, &state);
    return asked == ncclSuccess ? state : asked;
  }
  void check_not_aborted() const {
    if (is_aborted_ || comm_ == nullptr) throw std::runtime_error("NCCL: the link was aborted");
  }
  void check_result(ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw std::runtime_error(nccl_.why(result, comm_));
  }

  const Nccl& nccl_ = Nccl::get();
  const c10::Device device_;
  const LinkEnd end_;
  std::atomic<bool> is_aborted_{false};
  std::mutex mutex_;  // guards comm_, which one thread at a time may use
  ncclComm_t comm_ = nullptr;
  std::optional<First> first_;
};

#endif

#if GPIPE_HAS_NCCL
// What tells hosts apart for NCCL, which refuses two ranks of one host on one device: the name in
// NCCL_HOSTID, or nothing. If NCCL is told to let ranks share a device, each process counts as a
// host of its own.
std::string nccl_host() {
  constexpr int kFirstThatShares = 23000;  // NCCL 2.30
  const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (NCCL_VERSION_CODE >= kFirstThatShares && shares != nullptr && std::strcmp(shares, "1") == 0) {
    return std::to_string(getpid());
  }
  const char* const host = std::getenv("NCCL_HOSTID");
  return host == nullptr ? "" : host;
}
#endif

// The value of an environment variable of NCCL's; `otherwise` if it has none above 0.
int64_t number_in(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  const int64_t number = text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
  return number > 0 ? number : otherwise;
}

class NcclLinks final : public LinkKind {
 public:
  std::string name() const override { return "nccl"; }
  c10::DeviceType device_type() const override { return c10::kCUDA; }

  // NCCL 2.30 uses as many channels as a kernel has blocks, as a power of two. Where one GPU
  // reaches the memory of the other one, it has a buffer for each peer and channel: at the receiver
  // one for each of its three protocols; at the sender, which some GPUs read from, the last of
  // these. Each takes whole pages. By other ways buffers are smaller, or on the host. NCCL's other
  // memory (1 or 2 MiB) is not counted.
  LinkCost cost(const LinkEnd& end, int64_t most_blocks) const override {
    constexpr int64_t kPage = 2 << 20;
    const auto in_pages = [](int64_t bytes) { return (bytes + kPage) / kPage * kPage; };
    const int64_t simple = number_in("NCCL_BUFFSIZE", 4 << 20);
    const int64_t small = number_in("NCCL_LL_BUFFSIZE", 512 << 10) +
                          number_in("NCCL_LL128_BUFFSIZE", int64_t{120} * 640 * 8 * 8);
    constexpr int64_t kMostChannels = 64;
    const int64_t blocks =
        std::max(number_in("NCCL_MAX_CTAS", most_blocks), number_in("NCCL_MIN_P2P_NCHANNELS", 1));
    LinkCost cost;
    for (cost.blocks = 1; cost.blocks < std::min(blocks, kMostChannels);) cost.blocks *= 2;
    for (int64_t other = 0; other < end.members; ++other) {
      if (end.sends_to(other)) cost.bytes += cost.blocks * in_pages(simple);
      if (end.receives_from(other)) cost.bytes += cost.blocks * in_pages(simple + small);
    }
    return cost;
  }

#if GPIPE_HAS_NCCL
  void check_available() const override {
    if (Nccl::get().missing.empty()) return;
    throw std::invalid_argument("GPIPE_DEVICE_LINKS=nccl, but LibTorch has loaded no NCCL with " +
                                Nccl::get().missing +
                                ": take a LibTorch for CUDA from its wheels, or unset "
                                "GPIPE_DEVICE_LINKS");
  }
  std::string identity(c10::Device device) const override {
    const cudaUUID_t& uuid = at::cuda::getDeviceProperties(device.index())->uuid;
    return std::string(uuid.bytes, sizeof uuid.bytes) + nccl_host();
  }
  std::string new_id() const override {
    ncclUniqueId id;
    const ncclResult_t result = Nccl::get().get_unique_id(&id);
    if (result != ncclSuccess) throw std::runtime_error(Nccl::get().why(result, nullptr));
    return std::string(id.internal, sizeof id.internal);
  }
  std::optional<c10::Stream> new_stream(c10::Device device) const override {
    return Streams::get().take(device);
  }
  void give_back_stream(const c10::Stream& stream) const noexcept override {
    Streams::get().give_back(stream);
  }
  int64_t multiprocessors(c10::Device device) const override {
    return at::cuda::getDeviceProperties(device.index())->multiProcessorCount;
  }
  std::unique_ptr<DeviceLink> connect(const std::string& id, const LinkEnd& end, c10::Device device,
                                      int64_t most_blocks) const override {
    return std::make_unique<NcclLink>(id, end, device, most_blocks);
  }
#else
  void check_available() const override {
    throw std::invalid_argument(
        "GPIPE_DEVICE_LINKS=nccl, but this program was built with a LibTorch without CUDA or "
        "without NCCL's header: take a LibTorch for CUDA from its wheels, or unset "
        "GPIPE_DEVICE_LINKS");
  }
  std::string identity(c10::Device /*device*/) const override { return (check_available(), ""); }
  std::string new_id() const override { return (check_available(), ""); }
  std::unique_ptr<DeviceLink> connect(const std::string& /*id*/, const LinkEnd& /*end*/,
                                      c10::Device /*device*/,
                                      int64_t /*most_blocks*/) const override {
    check_available();
    return nullptr;
  }
#endif
};

}  // namespace

const LinkKind& nccl_links() {
  static const NcclLinks* const kind =
      new NcclLinks;  // never destroyed, as what uses it may not be
  return *kind;
}

}  // namespace gpipe::distributed
