#include "gpipe/distributed/packets/device_links.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <optional>
#include <stdexcept>
#include <utility>

#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::distributed {
namespace {

using c10::impl::VirtualGuardImpl;

// The pause between two checks of the links for errors. Control tells the end of a process sooner
// than such a check.
constexpr std::chrono::milliseconds kPause{100};
// How long the destructor waits for work on streams before it aborts the links.
constexpr std::chrono::seconds kEndLimit{2};
// How long an abort waits for messages that settle() told of. Only a process that has died, or a
// slow device, lets it wait that long.
constexpr std::chrono::seconds kSettleLimit{5};

// Adds what is not empty to the messages for or from `member`.
void add(const std::vector<at::Tensor>& messages, int64_t member,
         std::vector<DeviceLink::Message>& to) {
  for (const at::Tensor& bytes : messages) {
    if (bytes.numel() > 0) to.push_back({member, bytes});
  }
}

// The streams of all links of this process.
struct StreamsOfLinks {
  std::mutex mutex;
  std::vector<c10::Stream> taken;
};
StreamsOfLinks& streams_of_links() {
  static auto* const streams = new StreamsOfLinks;  // never destroyed, as links may not be
  return *streams;
}

// Takes a stream, of the kind if it has any, on which no other work runs. A message that waits for
// the other end would delay that work, and the other end may wait for just that work.
c10::Stream take_stream(const LinkKind& kind, c10::Device device) {
  if (const std::optional<c10::Stream> own = kind.new_stream(device)) return *own;
  StreamsOfLinks& streams = streams_of_links();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  // As long as the device has enough streams, this one is used neither for copies nor for
  // recordings of graphs.
  const c10::Stream stream = internal::take_stream_for_recordings(device);
  if (std::find(streams.taken.begin(), streams.taken.end(), stream) != streams.taken.end()) {
    internal::give_back_stream_for_recordings(stream);
    throw std::runtime_error("a device has not enough streams for " +
                             std::to_string(streams.taken.size() + 1) + " links");
  }
  streams.taken.push_back(stream);
  return stream;
}

void give_back_stream(const LinkKind& kind, const c10::Stream& stream) {
  StreamsOfLinks& streams = streams_of_links();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  const auto place = std::find(streams.taken.begin(), streams.taken.end(), stream);
  if (place == streams.taken.end()) return kind.give_back_stream(stream);
  streams.taken.erase(place);
  internal::give_back_stream_for_recordings(stream);
}

}  // namespace

DeviceLinks::DeviceLinks(const LinkKind& kind, c10::Device device,
                         std::function<void(const std::string&)> on_error)
    : kind_(kind), device_(device), on_error_(std::move(on_error)), watcher_([this] { watch(); }) {}

DeviceLinks::~DeviceLinks() {
  wait_for_streams();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_last_ = true;
    changed_.notify_all();
  }
  watcher_.join();
  for (auto& [key, line] : lines_) {
    line.link.reset();
    line.settled.reset();
    give_back_stream(kind_, line.stream);
  }
}

size_t DeviceLinks::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lines_.size();
}

bool DeviceLinks::has(const Edge& edge, DeviceLink::End end) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lines_.count({edge, end}) != 0;
}

void DeviceLinks::begin(const Edge& edge, DeviceLink::End end, const std::string& id,
                        int64_t most_blocks) {
  begin({edge, end}, end_of(end), id, most_blocks);
}

void DeviceLinks::begin_set(const std::vector<int64_t>& ranks, const LinkEnd& end,
                            const std::string& id, int64_t most_blocks) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranks_ = ranks;
  }
  begin({kSet, DeviceLink::End::kSends}, end, id, most_blocks);
}

void DeviceLinks::begin(const Key& key, const LinkEnd& end, const std::string& id,
                        int64_t most_blocks) {
  const c10::Stream stream = take_stream(kind_, device_);
  try {
    auto link = kind_.connect(id, end, device_, most_blocks);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_aborted_) {
      link->abort();
      throw std::runtime_error("it was given up");
    }
    lines_.emplace(std::piecewise_construct, std::forward_as_tuple(key),
                   std::forward_as_tuple(std::move(link), stream));
  } catch (const std::exception& error) {
    give_back_stream(kind_, stream);
    throw std::runtime_error(name_of(key.first) + ": " + error.what());
  }
}

bool DeviceLinks::are_connected() {
  bool all = true;
  // Reading lines_ needs no lock here: only this thread adds to it (begin()), and the watcher only
  // reads it.
  for (auto& [key, line] : lines_) {
    try {
      all = line.link->is_connected() && all;
    } catch (const std::exception& error) {
      throw std::runtime_error(name_of(key.first) + ": " + error.what());
    }
  }
  return all;
}

void DeviceLinks::send(const Edge& edge, const std::vector<at::Tensor>& messages) {
  const std::vector<Load> to = loads({{edge, messages}}, {});
  internal::follow(to.front().line->stream, internal::current_stream(device_));
  put(to.front());
}

c10::Stream DeviceLinks::receiving_stream(const Edge& edge) const {
  return line(edge, DeviceLink::End::kReceives).stream;
}

void DeviceLinks::receive(const Edge& edge, const std::vector<at::Tensor>& messages) {
  put(loads({}, {{edge, messages}}).front());
}

void DeviceLinks::let_follow(const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, line] : lines_) internal::follow(stream, line.stream);
}

void DeviceLinks::exchange(const Messages& sends, const Messages& receives) {
  const c10::Stream here = internal::current_stream(device_);
  // No link waits for another one: a send may wait for the other end's receive, and that end's send
  // for a receive here.
  const std::shared_ptr<c10::Event> before = internal::record_event(here);
  std::vector<c10::Stream> used;
  std::exception_ptr error;
  try {
    for (const Load& load : loads(sends, receives)) {
      internal::wait_for_event(*before, load.line->stream);
      used.push_back(load.line->stream);
      put(load, /*keeps_memory=*/false);
    }
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  for (const c10::Stream& stream : used) internal::follow(here, stream);
  if (error != nullptr) std::rethrow_exception(error);
}

void DeviceLinks::settle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_aborted_) return;
  for (auto& [key, line] : lines_) line.settled = internal::record_event(line.stream);
}

void DeviceLinks::abort() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_aborted_ = true;
  changed_.notify_all();
}

std::string DeviceLinks::name_of(const Edge& edge) const {
  if (edge.from >= 0) {
    return "the link from rank " + std::to_string(edge.from) + " to rank " +
           std::to_string(edge.to);
  }
  std::string name = "the link between ranks";
  for (const int64_t rank : ranks_) name += " " + std::to_string(rank);
  return name;
}

const DeviceLinks::Line& DeviceLinks::line(const Edge& edge, DeviceLink::End end) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = lines_.find({edge, end});
  if (found == lines_.end()) throw std::logic_error(name_of(edge) + " was not connected");
  return found->second;
}

std::vector<DeviceLinks::Load> DeviceLinks::loads(const Messages& sends,
                                                  const Messages& receives) const {
  std::vector<Load> result;
  if (ranks_.empty()) {
    for (const auto& [edge, messages] : sends) {
      result.push_back({&line(edge, DeviceLink::End::kSends), {}, {}});
      add(messages, 1, result.back().sends);
    }
    for (const auto& [edge, messages] : receives) {
      result.push_back({&line(edge, DeviceLink::End::kReceives), {}, {}});
      add(messages, 0, result.back().receives);
    }
    return result;
  }
  const auto member = [this](int64_t rank) {
    return std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
  };
  result.push_back({&line(kSet, DeviceLink::End::kSends), {}, {}});
  for (const auto& [edge, messages] : sends) add(messages, member(edge.to), result[0].sends);
  for (const auto& [edge, messages] : receives) {
    add(messages, member(edge.from), result[0].receives);
  }
  return result;
}

void DeviceLinks::put(const Load& load, bool keeps_memory) {
  if (load.sends.empty() && load.receives.empty()) return;
  for (const auto* const messages : {&load.sends, &load.receives}) {
    for (const DeviceLink::Message& message : *messages) {
      if (keeps_memory) internal::use_on(message.bytes, load.line->stream);
    }
  }
  try {
    load.line->link->move(load.sends, load.receives, load.line->stream);
  } catch (const std::exception&) {
    // If abort() was called, its caller knows the reason, so this error is not reported.
    if (!is_aborted()) throw;
  }
}

bool DeviceLinks::is_aborted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_aborted_;
}

void DeviceLinks::watch() {
  bool has_told = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_last_ && !is_aborted_) {
    changed_.wait_for(lock, kPause);
    if (is_last_ || is_aborted_ || has_told) continue;
    lock.unlock();
    try {
      check_links();
    } catch (const std::exception& error) {
      has_told = true;
      if (!is_aborted()) on_error_(error.what());
    }
    lock.lock();
  }
  if (!is_aborted_) return;
  lock.unlock();
  // From here on begin() adds no lines.
  //
  // Each link is aborted on a thread of its own (as long as the system has threads), because an
  // abort waits for its link's stream, and that may wait for another link: a send waits for the
  // stage's stream, which waits for a receive.
  std::vector<std::future<void>> aborts;
  for (auto& [key, line] : lines_) {
    aborts.push_back(std::async(std::launch::async | std::launch::deferred,
                                [this, &line = line] { abort(line); }));
  }
  for (std::future<void>& abort : aborts) abort.wait();
}

void DeviceLinks::abort(const Line& line) const noexcept {
  const auto limit = std::chrono::steady_clock::now() + kSettleLimit;
  try {
    // Without this guard CUDA would make a context on GPU 0, because this thread has used no GPU.
    const c10::DeviceGuard guard(device_);
    while (line.settled != nullptr && !line.settled->query() &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  } catch (const std::exception&) {  // the device is broken
  }
  line.link->abort();
}

void DeviceLinks::check_links() {
  std::vector<std::pair<Edge, DeviceLink*>> links;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [key, line] : lines_) links.emplace_back(key.first, line.link.get());
  }
  for (const auto& [edge, link] : links) {
    try {
      link->check();
    } catch (const std::exception& error) {
      throw std::runtime_error(name_of(edge) + " broke: " + error.what());
    }
  }
}

void DeviceLinks::wait_for_streams() noexcept {
  const auto limit = std::chrono::steady_clock::now() + kEndLimit;
  try {
    for (const auto& [key, line] : lines_) {
      const VirtualGuardImpl impl(device_.type());
      while (!is_aborted() && !impl.queryStream(line.stream)) {
        if (std::chrono::steady_clock::now() > limit) return abort();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  } catch (const std::exception&) {  // the device is broken
    abort();
  }
}

}  // namespace gpipe::distributed
