// World::from_environment() and connect_world(): they make a session, and move packets over its
// group.
#include "gpipe/world.h"

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/connect_world.h"
#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/error_file.h"
#include "gpipe/distributed/meet/c10d.h"
#include "gpipe/distributed/meet/environment.h"
#include "gpipe/distributed/meet/session.h"
#include "gpipe/distributed/packets/connect_links.h"
#include "gpipe/distributed/packets/device_link.h"
#include "gpipe/distributed/packets/device_links.h"
#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/distributed/packets/parcels.h"
#include "gpipe/distributed/packets/remote_transport.h"
#include "gpipe/internal/processes/connected.h"
#include "gpipe/internal/processes/linked_processes.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/tensors/byte_tensor.h"
#include "gpipe/runtime/bytes.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/fork_guard.h"
#include "text/exception_text.h"

namespace gpipe {
namespace distributed {
namespace {

using internal::Packet;
using internal::Processes;

constexpr std::chrono::hours kLongestWait{24 * 365};  // a longer limit could overflow a time

// Marks a Disagreement of a collective as thrown by all ranks. The mark is needed, because a layer
// may also throw a Disagreement, of which the other ranks do not know.
template <typename Collective>
auto found_by_all(const Collective& collective) {
  try {
    return collective();
  } catch (const Disagreement&) {
    throw internal::FoundByAll{std::current_exception()};
  }
}

void say(const std::string& text) { std::clog << "gpipe: " + text + "\n" << std::flush; }

class ConnectedProcesses final : public Processes, public internal::LinkedProcesses {
 public:
  // `kind`: the kind of links between devices; null: tensors go through the host.
  ConnectedProcesses(std::unique_ptr<Session> session, const LinkKind* kind,
                     const SessionOptions& options)
      : session_(std::move(session)),
        call_limit_(options.call_limit),
        announces_(options.announce && session_->rank() == 0),
        kind_(kind),
        error_file_(session_->environment().error_file) {}
  // In a forked child the members are leaked, because the threads do not exist there. Gloo would
  // wait for its threads forever, and would remove the parent's sockets from the epoll that parent
  // and child share.
  ~ConnectedProcesses() override {
    if (!fork_guard_.stale()) return;
    (void)links_.release();
    (void)group_.release();
    (void)session_.release();
  }

  int64_t rank() const override { return session_->rank(); }
  int64_t size() const override { return session_->size(); }
  int64_t next_number() override { return number_; }
  void take_number() override { ++number_; }

  std::unique_ptr<Call> begin_call() override;
  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool is_patient) override {
    return found_by_all([&] {
      const internal::WaitScope waits;
      return control().exchange(name, value, is_patient);
    });
  }
  void agree(const std::string& name, const std::string& value) override {
    found_by_all([&] {
      const internal::WaitScope waits;
      control().agree(name, value);
    });
  }
  void move(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives) override {
    move_parcels(*group_, control(), sends, receives);
  }
  Links* links(const std::vector<int64_t>& ranks, const std::vector<Direction>& directions,
               c10::Device device) override;
  std::unique_ptr<Run> begin_run(const Program& program,
                                 const std::vector<int64_t>& process_of_worker,
                                 std::shared_ptr<Messages>& messages,
                                 std::function<std::string(int64_t)> current_layer,
                                 c10::Device device) override;

 private:
  class ConnectedCall;
  class ConnectedRun;
  class ConnectedLinks;
  struct PlannedMessages final : Messages {
    PlannedMessages(const Program& program, const std::vector<int64_t>& process_of_worker,
                    int64_t epoch)
        : plan(program, process_of_worker), epoch(epoch) {}

    MessagePlan plan;
    int64_t epoch;
    DeviceLinks* links = nullptr;  // valid in the same epoch
  };

  Control& control() { return session_->control(); }
  LinkPools& link_pools();
  DeviceLinks* connect_links(const MessagePlan& plan, c10::Device device);

  // Called when a call has succeeded: removes the error file of an earlier failure.
  void got_over_it() noexcept {
    if (std::exchange(has_error_file_, false)) error_file_.forget();
  }
  void write_error_file() noexcept {
    has_error_file_ = true;
    error_file_.write(text::message_of_current_exception());
  }

  internal::Connected connected_;
  internal::ForkGuard fork_guard_;
  std::unique_ptr<Session> session_;
  const std::chrono::milliseconds call_limit_;
  const bool announces_;
  std::timed_mutex call_;                  // held by a call, which owns the members below
  std::atomic<std::thread::id> caller_{};  // the thread that holds it
  // How many calls have waited for the lock in vain. They count as begun if the call that holds the
  // lock succeeds. If it fails, they do not count: one of its layers may have made them, in a
  // thread for which it waits, and then other ranks make no such calls.
  std::atomic<uint64_t> missed_calls_{0};
  std::unique_ptr<Group> group_;  // for this epoch
  const LinkKind* const kind_;
  bool has_told_of_no_links_ = false;  // that no stage is on a device which links could join
  struct EpochLinks {
    EpochLinks(const LinkKind& kind, LinkPools::Others others, Control& control)
        : pools(kind, std::move(others)), watch(control, [this] { pools.abort(); }) {}

    LinkPools pools;
    // Between runs, too, a device may wait for a process that has failed.
    const Control::Watch watch;
  };
  std::unique_ptr<EpochLinks> links_;
  std::unique_ptr<ConnectedLinks> links_of_caller_;  // the result of links()
  // Whether the last failure has been thrown to the caller in this process. Each failure is thrown
  // once: a caller that calls again wants to go on.
  bool failure_is_told_ = false;
  // Whether this call's failure has been reported to the other ranks. Workers may write it at once.
  std::atomic<bool> failure_is_reported_{false};
  ErrorFile error_file_;
  bool has_error_file_ = false;

  int64_t number_ = 0;  // the number of the next pipeline
};

// How many calls of all processes, of any world, this thread is in.
thread_local int64_t calls_of_this_thread = 0;

class ConnectedProcesses::ConnectedCall final : public Call {
 public:
  // Requirement: the calling thread holds call_.
  explicit ConnectedCall(ConnectedProcesses& processes)
      : processes_(processes), call_(processes.control()) {
    processes_.caller_ = std::this_thread::get_id();
    ++calls_of_this_thread;
  }
  ~ConnectedCall() override {
    processes_.caller_ = std::thread::id();
    --calls_of_this_thread;
  }

  // Called when the call has begun: it holds the lock from now on.
  void take(std::unique_lock<std::timed_mutex> lock) { lock_ = std::move(lock); }

  void done() override {
    call_.done();
    // All processes have done their part, so all messages are on their way.
    if (processes_.links_ != nullptr) processes_.links_->pools.settle();
    processes_.got_over_it();
  }

  void failed() noexcept override {
    processes_.missed_calls_ = 0;
    processes_.write_error_file();
    processes_.failure_is_told_ = true;
    if (processes_.failure_is_reported_) return;
    if (processes_.control().failed()) {
      try {
        throw;
      } catch (const DistributedFailure&) {
        return;
      } catch (...) {
        // This exception is reported, too: it counts beside the faults that have been told already.
      }
    }
    Fault fault;
    fault.text = text::message_of_current_exception();
    processes_.control().report(std::move(fault));
  }

  void failed_on_all() noexcept override {
    processes_.missed_calls_ = 0;
    processes_.write_error_file();
    call_.done();
  }

 private:
  ConnectedProcesses& processes_;
  std::unique_lock<std::timed_mutex> lock_;
  Control::Call call_;
};

std::unique_ptr<Processes::Call> ConnectedProcesses::begin_call() {
  TORCH_CHECK_VALUE(caller_ != std::this_thread::get_id(),
                    "a call of all processes within another one of theirs (in a schedule's "
                    "generator, materialize's function or a hook) would wait for itself; make it "
                    "before or after");
  if (fork_guard_.stale()) {
    throw std::logic_error(
        "this World was made before fork(), and a child has no part in it: the others would wait "
        "for its parent. Make calls of all processes in the parent alone; in the child, make "
        "pipelines without a world");
  }
  std::unique_lock<std::timed_mutex> lock(call_, std::defer_lock);
  bool is_free = false;
  {
    const internal::WaitScope waits;
    is_free = lock.try_lock_for(call_limit_);
  }
  // On another rank the same call may get its lock in time, so the call counts here, too.
  if (!is_free) ++missed_calls_;
  TORCH_CHECK_VALUE(is_free,
                    "another thread of this process has been in a call of all processes for ",
                    std::chrono::duration<double>(call_limit_).count(),
                    " s (WorldOptions::call_limit), and calls are made one after another. If a "
                    "layer, a loss function, a hook or an observer has started this thread, and "
                    "waits for it, the call would wait for itself: make this one before or after");
  failure_is_reported_ = false;
  for (uint64_t begun = missed_calls_.exchange(0) + 1; begun > 0; --begun) control().count_call();
  std::unique_ptr<ConnectedCall> call;
  try {
    const bool must_go_on = control().failed();
    // A failure that has not been thrown yet is thrown first, even if the call has been given up
    // meanwhile.
    if (failure_is_told_ || !must_go_on) control().check_not_given_up();
    if (failure_is_told_ && must_go_on) {
      const internal::WaitScope waits;
      control().next_epoch();
      links_.reset();
      group_.reset();
    }
    failure_is_told_ = false;
    call = std::make_unique<ConnectedCall>(*this);
    if (group_ == nullptr) {
      const internal::WaitScope waits;
      group_ = session_->connect_group("packets");
    }
    call->take(std::move(lock));
    return call;
  } catch (const Disagreement&) {
    if (call != nullptr) {
      call->failed_on_all();
    } else {
      write_error_file();
    }
    throw;
  } catch (...) {
    // The lock is still held, so no call of another thread uses these members meanwhile.
    if (call != nullptr) {
      call->failed();
    } else {
      failure_is_told_ = control().failed();
      write_error_file();
    }
    throw;
  }
}

class ConnectedProcesses::ConnectedRun final : public Run {
 public:
  ConnectedRun(ConnectedProcesses& processes, const Program& program, MessagePlan& plan,
               const RemoteTransportOptions& options)
      : processes_(processes),
        is_on_device_(options.links != nullptr),
        transport_(program, plan, *processes.group_, processes.rank(), &processes.control(),
                   options) {}

  void send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) override {
    transport_.send(sends, packets);
  }
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<Packet>& packets) override {
    return transport_.receive(worker, slots, packets);
  }
  void cancel() noexcept override {
    transport_.cancel();
    processes_.failure_is_reported_ = true;
  }
  void finish() override { transport_.finish(); }
  bool is_on_device() const override { return is_on_device_; }

 private:
  ConnectedProcesses& processes_;
  const bool is_on_device_;
  RemoteTransport transport_;
};

// All processes of the replica call this together, in the first run of a program.
DeviceLinks* ConnectedProcesses::connect_links(const MessagePlan& plan, c10::Device device) {
  if (kind_ == nullptr) return nullptr;
  if (device.type() == kind_->device_type()) return &link_pools().connect(plan, device);
  if (announces_ && !std::exchange(has_told_of_no_links_, true)) {
    say("GPIPE_DEVICE_LINKS=" + kind_->name() + " is not used: the stages are on " +
        c10::DeviceTypeName(device.type(), /*lower_case=*/true) + ", and it joins " +
        c10::DeviceTypeName(kind_->device_type(), /*lower_case=*/true) + " devices");
  }
  return nullptr;
}

LinkPools& ConnectedProcesses::link_pools() {
  if (links_ == nullptr) {
    links_ = std::make_unique<EpochLinks>(
        *kind_,
        LinkPools::Others{rank(),
                          [this](const std::string& name, const std::string& value,
                                 const std::vector<int64_t>& ranks) {
                            const internal::WaitScope waits;
                            return session_->exchange_among(
                                ranks, std::to_string(control().epoch()) + "/" + name, value);
                          },
                          [this] { control().check(); },
                          [this, epoch = control().epoch()](const std::string& why) {
                            // At the end of an epoch the process at the link's other end may close
                            // the link first. So the symptom is told with its epoch, and does not
                            // count in a later one.
                            control().throw_failure(why, epoch);
                          },
                          announces_ ? say : nullptr},
        control());
  }
  return links_->pools;
}

class ConnectedProcesses::ConnectedLinks final : public Links {
 public:
  ConnectedLinks(DeviceLinks& links, Control& control) : links_(links), control_(control) {}

  void move(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives) override {
    move_parcels(links_, control_, sends, receives);
  }

 private:
  DeviceLinks& links_;
  Control& control_;
};

internal::LinkedProcesses::Links* ConnectedProcesses::links(
    const std::vector<int64_t>& ranks, const std::vector<Direction>& directions,
    c10::Device device) {
  if (kind_ == nullptr) return nullptr;
  // In each call the processes compare their devices, so that all know which links exist already.
  // 0: no links.
  const bool is_of_kind = device.type() == kind_->device_type();
  const int64_t here = is_of_kind ? device_number(kind_->identity(device)) : 0;
  const at::Tensor own = internal::tensor_of_bytes(internal::to_bytes(here));
  std::vector<Parcel> sends;
  std::vector<Parcel> receives;
  for (const int64_t to : ranks) {
    if (to == rank()) continue;
    sends.push_back({to, own});
    receives.push_back({to, internal::new_bytes(own.numel())});
  }
  move(sends, receives);
  std::vector<int64_t> devices;
  auto received = receives.begin();
  for (const int64_t of : ranks) {
    const at::Tensor& bytes = of == rank() ? own : (received++)->bytes;
    const auto number = internal::from_bytes<int64_t>(internal::bytes_in(bytes));
    const bool is_known = std::find(devices.begin(), devices.end(), number) != devices.end();
    if (number == 0 || is_known) return nullptr;
    devices.push_back(number);
  }
  std::vector<Edge> edges;
  for (const auto& [from, to] : directions) edges.push_back({from, to});
  if (directions.empty() && ranks.size() > 1) edges.push_back(DeviceLinks::kSet);
  links_of_caller_ = std::make_unique<ConnectedLinks>(
      link_pools().connect(ranks, devices, edges, device), control());
  return links_of_caller_.get();
}

std::unique_ptr<Processes::Run> ConnectedProcesses::begin_run(
    const Program& program, const std::vector<int64_t>& process_of_worker,
    std::shared_ptr<Messages>& messages, std::function<std::string(int64_t)> current_layer,
    c10::Device device) {
  auto* planned = static_cast<PlannedMessages*>(messages.get());
  if (planned == nullptr || planned->epoch != control().epoch()) {
    auto fresh = std::make_shared<PlannedMessages>(program, process_of_worker, control().epoch());
    fresh->links = connect_links(fresh->plan, device);
    planned = fresh.get();
    messages = std::move(fresh);
  }
  RemoteTransportOptions options;
  options.current_layer = std::move(current_layer);
  options.links = planned->links;
  return std::make_unique<ConnectedRun>(*this, program, planned->plan, options);
}

}  // namespace

World connect_world(const Environment& environment, const WorldOptions& options,
                    const std::string& name, const std::function<void()>& check) {
  if (environment.size == 1) return World(nullptr, 0, 1, environment.local_rank);
  SessionOptions session;
  const auto limit = [](std::chrono::milliseconds given) {
    return std::min<std::chrono::milliseconds>(given, kLongestWait);
  };
  session.rendezvous_limit = limit(options.rendezvous_limit);
  session.silence_limit = limit(options.silence_limit);
  session.call_limit = limit(options.call_limit);
  session.announce = options.announce;
  session.name = name;
  session.check = check;
  try {
    const LinkKind* kind = nullptr;
    if (environment.device_links != "host") {
      kind = &link_kind(environment.device_links);
      kind->check_available();
    }
    return World(
        std::make_shared<ConnectedProcesses>(Session::connect(environment, session), kind, session),
        environment.rank, environment.size, environment.local_rank);
  } catch (...) {
    ErrorFile(environment.error_file).write(text::message_of_current_exception());
    throw;
  }
}

}  // namespace distributed

World World::from_environment(const WorldOptions& options) {
  internal::check_outside_of_pipelines("World::from_environment");
  TORCH_CHECK_VALUE(distributed::calls_of_this_thread == 0,
                    "World::from_environment within a call of all processes (in a schedule's "
                    "generator, StepOptions::weight, materialize's function or a hook) would wait "
                    "for ranks that are in that call; make it before or after");
  const distributed::Environment environment = distributed::environment_of_this_process();
  if (environment.size == 1) return World();
  return distributed::connect_world(environment, options);
}

}  // namespace gpipe
