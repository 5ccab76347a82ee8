// Runtime: devices, streams and events on CPU threads, as an accelerator's driver has them.
//
// It runs closures. It is told which memory they touch, and passes that on to a RaceDetector. It
// knows neither LibTorch nor an allocator, which are layers above it.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_RUNTIME_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_RUNTIME_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/testing/fake_accelerator/race_detector.h"
#include "gpipe/testing/fake_accelerator/vector_clock.h"

namespace gpipe::testing::fake {

constexpr int kDevices = 4;
// The default stream, number 0, and a pool of 32, as LibTorch has for CUDA.
constexpr int kStreams = 33;

struct StreamId {
  int device = 0;
  int number = 0;
  bool operator==(const StreamId& other) const {
    return device == other.device && number == other.number;
  }
  bool operator!=(const StreamId& other) const { return !(*this == other); }
  bool operator<(const StreamId& other) const {
    return device != other.device ? device < other.device : number < other.number;
  }
};
std::string to_text(StreamId stream);  // "fake:1/3": stream 3 of device 1

// Thrown by a call after a task of its device has failed: kernels run after the call that launched
// them, so only a later call can say so.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown for an operation on a stream that is being recorded, if it cannot be recorded.
class RecordingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Task {
  enum class Kind {
    kKernel,
    kCopy,
    // Work of the allocator. It takes no simulated time, is not counted, and runs despite errors.
    kUpkeep,
  };
  std::string name;
  Kind kind = Kind::kKernel;
  std::vector<Access> accesses;
  std::function<void()> run;            // may be null: nothing is run
  std::chrono::microseconds longer{0};  // time in addition to Durations
  // Makes a new `run` for each replay. Null if a replay can run a copy of `run`.
  std::function<std::function<void()>()> renew = nullptr;
};

// A point in a stream: everything enqueued on it before. A value; empty until recorded.
class Event {
 public:
  Event() = default;

 private:
  friend class Runtime;
  StreamId stream_;
  uint64_t time_ = 0;  // 0: never recorded, always over
  VectorClock clock_;
};

// Simulated time that a task takes before it touches memory.
struct Durations {
  std::chrono::microseconds kernel{0};
  std::chrono::microseconds copy{0};
  // At most this much is added at random. It is the same in each run of a program.
  std::chrono::microseconds random{0};
};

struct Counters {
  int64_t kernels = 0;
  int64_t copies = 0;
  int64_t host_waits = 0;
};
Counters operator-(const Counters& a, const Counters& b);

// When a task ran, for pictures of overlap.
struct Span {
  StreamId stream;
  std::string name;
  Task::Kind kind;
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

// The reason for which a host thread waits for a stream.
enum class Wait {
  kAsked,  // the program synchronizes
  // An operation that is called must wait: item(), a blocking copy, a result sized by values.
  kImplied,
  kUpkeep,  // a test's own wait, between tests; never counted
};

// Which waits of host threads are unexpected.
enum class HostWaits {
  // Implied waits of all threads but the test's, if set_test_thread() has named that thread.
  kOfTheTest,
  kAllowed,    // no waits are unexpected
  kForbidden,  // all waits are unexpected
};

// Requirements: a task must not throw anything but std::exception.
//
// Guarantees: the tasks of a stream run one after another in the order in which they were enqueued,
// possibly after the call that enqueued them has returned. Tasks of different streams run at the
// same time. Once a task of a device has failed, launching a task on the device throws DeviceError,
// tasks enqueued before do not run, and waiting throws, too, until reset(). Tasks are ordered by
// streams, by events, and by the host: a task that is enqueued after a host thread has waited comes
// after the work for which that thread waited, whichever thread enqueues the task (how host threads
// wait for each other cannot be seen).
//
// Thread-safety: any thread may call any function. Tasks may, too, but they must not wait.
//
// Example:
//   Runtime runtime;
//   runtime.launch({0, 0}, {"make", Task::Kind::kKernel, {{where, true}}, [] { ... }});
//   runtime.wait({1, 0}, runtime.record({0, 0}));
//   runtime.launch({1, 0}, {"use", Task::Kind::kKernel, {{where, false}}, [] { ... }});
//   runtime.synchronize_device(1);
class Runtime {
 public:
  // `on_thread_start` runs first on each stream's thread. Threads are started when first needed.
  explicit Runtime(std::function<void()> on_thread_start = nullptr);
  // Calls shut_down().
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Throws DeviceError, std::out_of_range.
  void launch(StreamId stream, Task task);

  // Like CUDA's stream capture: tasks that are launched on the stream from begin_recording() to
  // end_recording() are kept and do not run. Recording or awaiting an event of the stream, or
  // letting it wait, throws RecordingError, and then end_recording() throws it, too. replay()
  // launches copies of the tasks, which are watched for races anew each time.
  void begin_recording(StreamId stream);
  std::vector<Task> end_recording(StreamId stream);
  bool is_recording(StreamId stream);
  void replay(StreamId stream, const std::vector<Task>& tasks);

  Event record(StreamId stream);
  // What is enqueued on `stream` from now on runs after the event. No host thread waits.
  void wait(StreamId stream, const Event& event);
  // Whether the event is over. If so, what the host enqueues later comes after the event.
  bool query(const Event& event);
  // Like query(), but without effect on the order. It is for allocators: if an allocator finds by
  // chance that an event is over, this must not hide a missing wait.
  bool is_over(const Event& event);
  bool is_idle(StreamId stream);
  // Adds to `clock` everything that the event comes after.
  static void join(VectorClock& clock, const Event& event) { clock.join(event.clock_); }

  // Throw DeviceError. `why` names the wait in reports.
  void synchronize(const Event& event, Wait kind = Wait::kAsked, const std::string& why = "event");
  void synchronize(StreamId stream, Wait kind = Wait::kAsked, const std::string& why = "stream");
  void synchronize_device(int device, Wait kind = Wait::kAsked, const std::string& why = "device");
  // Waits for all devices. Never throws, and does not count in Counters::host_waits.
  void drain();

  // Throws DeviceError if a task of the device has failed.
  void throw_error(int device);
  // Waits for the device and makes it usable again. Returns what had failed, or nothing.
  std::string reset(int device);

  // Blocks of memory whose accesses are watched, see RaceDetector.
  void add_block(const void* begin, size_t bytes, std::string name);
  void remove_block(const void* begin);
  void forget_accesses(const void* block, const VectorClock& clock);
  // The host itself accesses memory at this moment.
  void host_access(const std::string& what, const Access& access);

  void set_durations(Durations durations);
  Durations durations() const;
  void set_test_thread(std::thread::id thread);
  // Returns the former policy.
  HostWaits exchange_host_waits(HostWaits policy);
  // `place` says what the calling thread is doing, for the report of an unexpected wait.
  void set_place(std::function<std::string()> place);

  Counters counters() const;
  void set_tracing(bool on);
  // Waits for all devices first. Returns the spans since the last call, in no order.
  std::vector<Span> take_spans();
  // The races found since the last call.
  std::vector<std::string> take_races();
  std::vector<std::string> take_unexpected_waits();

  // Runs the tasks that are enqueued and ends the threads. A task that is enqueued later is
  // dropped, and counts as done.
  void shut_down();

 private:
  struct Enqueued {
    Task task;
    Event after;  // the task waits for this event, if it was recorded
  };
  struct Stream {
    StreamId id;
    int number = 0;  // the stream's component of clocks
    uint64_t enqueued = 0;
    uint64_t done = 0;
    VectorClock clock;
    std::deque<Enqueued> queue;
    std::condition_variable arrived;   // a task was enqueued, or the runtime shuts down
    std::condition_variable finished;  // a task has finished
    std::thread thread;
    std::minstd_rand random;
    bool recording = false;
    std::vector<Task> recorded;
    std::string refused;  // names the operation that could not be recorded
  };

  // These functions are called with mutex_ held. Functions that take a lock release it while they
  // wait.
  Stream& at(StreamId id);
  void enqueue(Stream& stream, Task task, const Event& after = {});
  void check_not_recording(Stream& stream, const char* what);
  Event event_of(const Stream& stream) const;
  bool over(const Event& event);
  void wait_for(std::unique_lock<std::mutex>& lock, const Event& event);
  void count_wait(Wait kind, const std::string& why, int device);
  void throw_error_locked(int device) const;
  void drain_locked(std::unique_lock<std::mutex>& lock, int device);

  void serve(Stream& stream);

  const std::function<void()> on_thread_start_;
  mutable std::mutex mutex_;
  std::unique_ptr<Stream> streams_[kDevices][kStreams];
  int streams_made_ = 0;
  std::string errors_[kDevices];
  VectorClock host_;  // all work for which a thread of the host has waited
  RaceDetector detector_;
  Durations durations_;
  std::thread::id test_thread_;
  HostWaits host_waits_ = HostWaits::kOfTheTest;
  std::function<std::string()> place_;
  Counters counters_;
  std::map<std::string, int64_t> unexpected_;
  bool tracing_ = false;
  std::vector<Span> spans_;
  bool closed_ = false;
};

// While it lives, `policy` says which waits of host threads are unexpected, for all threads.
//
// Example:
//   const HostWaitScope nobody_waits(runtime, HostWaits::kForbidden);
//   pipe->forward(x);
class HostWaitScope {
 public:
  HostWaitScope(Runtime& runtime, HostWaits policy)
      : runtime_(runtime), former_(runtime.exchange_host_waits(policy)) {}
  ~HostWaitScope() { runtime_.exchange_host_waits(former_); }
  HostWaitScope(const HostWaitScope&) = delete;
  HostWaitScope& operator=(const HostWaitScope&) = delete;

 private:
  Runtime& runtime_;
  const HostWaits former_;
};

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_RUNTIME_H_
