#include "gpipe/testing/fake_accelerator/runtime.h"

#include <atomic>
#include <exception>
#include <utility>

namespace gpipe::testing::fake {
namespace {

// The number of the calling thread. Threads are numbered from 0, in the order in which they first
// launch something.
int this_thread_number() {
  static std::atomic<int> next{0};
  thread_local const int mine = next++;
  return mine;
}

bool has_name(std::thread::id thread) { return thread != std::thread::id(); }

}  // namespace

std::string to_text(StreamId stream) {
  return "fake:" + std::to_string(stream.device) + "/" + std::to_string(stream.number);
}

Counters operator-(const Counters& a, const Counters& b) {
  return {a.kernels - b.kernels, a.copies - b.copies, a.host_waits - b.host_waits};
}

Runtime::Runtime(std::function<void()> on_thread_start)
    : on_thread_start_(std::move(on_thread_start)) {}

Runtime::~Runtime() { shut_down(); }

Runtime::Stream& Runtime::at(StreamId id) {
  if (id.device < 0 || id.device >= kDevices || id.number < 0 || id.number >= kStreams) {
    throw std::out_of_range("there is no stream " + to_text(id));
  }
  std::unique_ptr<Stream>& stream = streams_[id.device][id.number];
  if (stream == nullptr) {
    stream = std::make_unique<Stream>();
    stream->id = id;
    stream->number = streams_made_++;
    // The seed depends on the stream's device and number alone, so that a run can be repeated.
    stream->random.seed(static_cast<unsigned>(id.device * kStreams + id.number + 1));
  }
  return *stream;
}

void Runtime::enqueue(Stream& stream, Task task, const Event& after) {
  if (closed_) return;
  stream.clock.see(stream.number, ++stream.enqueued);
  stream.clock.join(host_);
  if (!task.accesses.empty()) {
    const bool by_test = std::this_thread::get_id() == test_thread_;
    const Actor actor{
        task.name + " on " + to_text(stream.id) + ", launched by " +
            (by_test ? "the test's thread" : "thread " + std::to_string(this_thread_number())),
        stream.number, stream.enqueued};
    for (const Access& access : task.accesses) detector_.access(actor, stream.clock, access);
  }
  if (task.kind == Task::Kind::kKernel) ++counters_.kernels;
  if (task.kind == Task::Kind::kCopy) ++counters_.copies;
  if (!stream.thread.joinable()) stream.thread = std::thread([this, &stream] { serve(stream); });
  // Upkeep does not wake the stream's thread, because waking costs more than most kernels of a
  // test. Upkeep can wait until a kernel follows, or until some code asks whether it is done (over,
  // wait_for).
  const bool urgent = task.kind != Task::Kind::kUpkeep;
  stream.queue.push_back({std::move(task), after});
  if (urgent) stream.arrived.notify_one();
}

void Runtime::serve(Stream& stream) {
  if (on_thread_start_) on_thread_start_();
  std::string& error = errors_[stream.id.device];
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    stream.arrived.wait(lock, [&] { return closed_ || !stream.queue.empty(); });
    if (stream.queue.empty()) return;
    Enqueued next = std::move(stream.queue.front());
    stream.queue.pop_front();
    wait_for(lock, next.after);
    const bool upkeep = next.task.kind == Task::Kind::kUpkeep;
    std::string failure;
    if (upkeep || error.empty()) {
      std::chrono::microseconds pause = next.task.longer;
      if (!upkeep) {
        pause += next.task.kind == Task::Kind::kCopy ? durations_.copy : durations_.kernel;
        const auto random = static_cast<unsigned>(durations_.random.count());
        if (random > 0) pause += std::chrono::microseconds(stream.random() % random);
      }
      lock.unlock();
      const auto begin = std::chrono::steady_clock::now();
      if (pause.count() > 0) std::this_thread::sleep_until(begin + pause);
      try {
        if (next.task.run) next.task.run();
      } catch (const std::exception& thrown) {
        failure = thrown.what();
      }
      // Destroys the closure and what it holds before the task counts as over. The lock is not held
      // here.
      next.task.run = nullptr;
      const auto end = std::chrono::steady_clock::now();
      lock.lock();
      if (tracing_ && !upkeep) {
        spans_.push_back({stream.id, next.task.name, next.task.kind, begin, end});
      }
    } else {
      lock.unlock();
      next.task.run = nullptr;
      lock.lock();
    }
    if (!failure.empty() && error.empty()) {
      error = next.task.name + " on " + to_text(stream.id) +
              " failed, and its device is of no use until it is reset (told by a later call, since "
              "kernels run after the call that launches them): " +
              failure;
    }
    ++stream.done;
    stream.finished.notify_all();
  }
}

Event Runtime::event_of(const Stream& stream) const {
  Event event;
  event.stream_ = stream.id;
  event.time_ = stream.enqueued;
  event.clock_ = stream.clock;
  event.clock_.join(host_);
  return event;
}

bool Runtime::over(const Event& event) {
  if (event.time_ == 0) return true;
  Stream& stream = at(event.stream_);
  if (stream.done >= event.time_) return true;
  stream.arrived.notify_one();
  return false;
}

void Runtime::wait_for(std::unique_lock<std::mutex>& lock, const Event& event) {
  if (event.time_ == 0) return;
  Stream& stream = at(event.stream_);
  if (stream.done < event.time_) stream.arrived.notify_one();
  stream.finished.wait(lock, [&] { return stream.done >= event.time_; });
}

void Runtime::launch(StreamId stream, Task task) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& target = at(stream);
  if (task.kind != Task::Kind::kUpkeep) throw_error_locked(stream.device);
  if (target.recording) {
    target.recorded.push_back(std::move(task));
  } else {
    enqueue(target, std::move(task));
  }
}

void Runtime::check_not_recording(Stream& stream, const char* what) {
  if (!stream.recording) return;
  stream.refused = std::string(what) + " " + to_text(stream.id) + ", which is being recorded";
  throw RecordingError(stream.refused);
}

void Runtime::begin_recording(StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& target = at(stream);
  if (stream.number == 0) throw RecordingError("the default stream cannot be recorded");
  check_not_recording(target, "a second recording of");
  throw_error_locked(stream.device);
  target.recording = true;
}

std::vector<Task> Runtime::end_recording(StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& target = at(stream);
  if (!target.recording) throw RecordingError(to_text(stream) + " is not being recorded");
  target.recording = false;
  std::vector<Task> tasks = std::exchange(target.recorded, {});
  const std::string refused = std::exchange(target.refused, std::string());
  if (!refused.empty()) throw RecordingError(refused);
  return tasks;
}

bool Runtime::is_recording(StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return at(stream).recording;
}

void Runtime::replay(StreamId stream, const std::vector<Task>& tasks) {
  for (const Task& task : tasks) {
    Task again = task;
    if (task.renew) again.run = task.renew();
    again.renew = nullptr;
    launch(stream, std::move(again));
  }
}

Event Runtime::record(StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& target = at(stream);
  check_not_recording(target, "an event of");
  return event_of(target);
}

void Runtime::wait(StreamId stream, const Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& waiting = at(stream);
  if (event.time_ == 0) return;
  check_not_recording(waiting, "a wait of");
  waiting.clock.join(event.clock_);
  if (event.stream_ == stream) return;
  enqueue(waiting, {"wait", Task::Kind::kUpkeep, {}, nullptr, {}}, event);
}

bool Runtime::query(const Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!over(event)) return false;
  host_.join(event.clock_);
  return true;
}

bool Runtime::is_over(const Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  return over(event);
}

bool Runtime::is_idle(StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  check_not_recording(at(stream), "a question to");
  const Event last = event_of(at(stream));
  if (!over(last)) return false;
  host_.join(last.clock_);
  return true;
}

void Runtime::count_wait(Wait kind, const std::string& why, int device) {
  if (kind == Wait::kUpkeep) return;
  ++counters_.host_waits;
  const bool by_test = std::this_thread::get_id() == test_thread_;
  bool unexpected = host_waits_ == HostWaits::kForbidden;
  if (host_waits_ == HostWaits::kOfTheTest) {
    unexpected = kind == Wait::kImplied && has_name(test_thread_) && !by_test;
  }
  if (!unexpected) return;
  const std::string who = by_test ? "the test's thread" : "a thread that is not the test's";
  const std::string place = place_ ? place_() : "";
  ++unexpected_[who + " waits for fake:" + std::to_string(device) + ": " + why +
                (place.empty() ? "" : ", " + place)];
}

void Runtime::synchronize(const Event& event, Wait kind, const std::string& why) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (event.time_ == 0) return;
  // The wait counts even if the event is already over, because in the next run the event may not be
  // over yet.
  count_wait(kind, why, event.stream_.device);
  wait_for(lock, event);
  host_.join(event.clock_);
  throw_error_locked(event.stream_.device);
}

void Runtime::synchronize(StreamId stream, Wait kind, const std::string& why) {
  synchronize(record(stream), kind, why);
  throw_error(stream.device);
}

void Runtime::synchronize_device(int device, Wait kind, const std::string& why) {
  std::unique_lock<std::mutex> lock(mutex_);
  at({device, 0});  // throws if there is no such device
  count_wait(kind, why, device);
  drain_locked(lock, device);
  throw_error_locked(device);
}

void Runtime::drain_locked(std::unique_lock<std::mutex>& lock, int device) {
  for (const auto& stream : streams_[device]) {
    if (stream == nullptr) continue;
    const Event last = event_of(*stream);
    wait_for(lock, last);
    host_.join(last.clock_);
  }
}

void Runtime::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (int device = 0; device < kDevices; ++device) drain_locked(lock, device);
}

void Runtime::throw_error_locked(int device) const {
  if (!errors_[device].empty()) throw DeviceError(errors_[device]);
}

void Runtime::throw_error(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  throw_error_locked(device);
}

std::string Runtime::reset(int device) {
  std::unique_lock<std::mutex> lock(mutex_);
  drain_locked(lock, device);
  return std::exchange(errors_[device], std::string());
}

void Runtime::add_block(const void* begin, size_t bytes, std::string name) {
  std::lock_guard<std::mutex> lock(mutex_);
  detector_.add_block(begin, bytes, std::move(name));
}

void Runtime::remove_block(const void* begin) {
  std::lock_guard<std::mutex> lock(mutex_);
  detector_.remove_block(begin);
}

void Runtime::forget_accesses(const void* block, const VectorClock& clock) {
  std::lock_guard<std::mutex> lock(mutex_);
  detector_.forget(block, clock);
}

void Runtime::host_access(const std::string& what, const Access& access) {
  std::lock_guard<std::mutex> lock(mutex_);
  detector_.host_access(what, host_, access);
}

void Runtime::set_durations(Durations durations) {
  std::lock_guard<std::mutex> lock(mutex_);
  durations_ = durations;
}

Durations Runtime::durations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return durations_;
}

void Runtime::set_test_thread(std::thread::id thread) {
  std::lock_guard<std::mutex> lock(mutex_);
  test_thread_ = thread;
}

void Runtime::set_place(std::function<std::string()> place) {
  std::lock_guard<std::mutex> lock(mutex_);
  place_ = std::move(place);
}

HostWaits Runtime::exchange_host_waits(HostWaits policy) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(host_waits_, policy);
}

Counters Runtime::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

void Runtime::set_tracing(bool on) {
  std::lock_guard<std::mutex> lock(mutex_);
  tracing_ = on;
}

std::vector<Span> Runtime::take_spans() {
  drain();
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(spans_, {});
}

std::vector<std::string> Runtime::take_races() {
  std::lock_guard<std::mutex> lock(mutex_);
  return detector_.take_races();
}

std::vector<std::string> Runtime::take_unexpected_waits() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> texts;
  for (const auto& [text, times] : unexpected_) {
    texts.push_back(times == 1 ? text : text + " (" + std::to_string(times) + " times)");
  }
  unexpected_.clear();
  return texts;
}

void Runtime::shut_down() {
  std::vector<std::thread> threads;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    for (auto& device : streams_) {
      for (auto& stream : device) {
        if (stream == nullptr) continue;
        stream->arrived.notify_one();
        if (stream->thread.joinable()) threads.push_back(std::move(stream->thread));
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gpipe::testing::fake
