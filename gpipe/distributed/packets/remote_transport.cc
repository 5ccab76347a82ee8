#include "gpipe/distributed/packets/remote_transport.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "gpipe/distributed/packets/packet_codec.h"
#include "gpipe/distributed/packets/transit.h"
#include "gpipe/internal/tensors/byte_tensor.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/mailboxes.h"
#include "text/exception_text.h"

namespace gpipe::distributed {
namespace {

using internal::new_bytes;
using internal::Packet;

std::string rank_name(int64_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

class RemoteTransport::Impl {
 public:
  Impl(const Program& program, MessagePlan& plan, Group& group, int64_t rank, Control* control,
       const RemoteTransportOptions& options)
      : program_(program),
        plan_(plan),
        group_(group),
        rank_(rank),
        control_(control),
        epoch_(control == nullptr ? 0 : control->epoch()),
        options_(options),
        mailboxes_(program.slots),
        inboxes_(program.workers.size()),
        next_places_(plan.edges().size()) {
    if (control_ != nullptr) watch_.emplace(*control_, [this] { cancel_here(); });
    for (size_t worker = 0; worker < program.workers.size(); ++worker) {
      if (plan_.rank_of_worker()[worker] == rank_) post(static_cast<int32_t>(worker));
    }
  }

  ~Impl() {
    watch_.reset();
    if (!is_finished_) cancel_here();
    end_departures();
    for (auto& [to, outbox] : outboxes_) {
      if (outbox.thread.joinable()) end_thread(outbox);
    }
  }

  void send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) {
    std::shared_ptr<c10::Event> copied;
    for (size_t k = 0; k < sends.size(); ++k) {
      Message& message = plan_.message(sends[k].worker, sends[k].slot);
      if (message.from < 0) continue;
      if (options_.links == nullptr && !packets[k].ready.empty()) {
        send_later(message, std::move(packets[k]));
      } else {
        send_away(message, packets[k], copied);
      }
    }
    for (size_t k = 0; k < sends.size(); ++k) {
      if (plan_.message(sends[k].worker, sends[k].slot).from >= 0) continue;
      // A receiver in this process may change the tensors on its own stream. So it waits for the
      // copy that send_by_link() makes of the same tensors.
      if (copied) packets[k].ready.push_back(copied);
      mailboxes_.put(sends[k].worker, sends[k].slot, std::move(packets[k]));
    }
  }

  bool receive(int32_t worker, const std::vector<int32_t>& slots, std::vector<Packet>& packets) {
    Inbox& inbox = inboxes_[static_cast<size_t>(worker)];
    running() = {number_, worker, inbox.steps++, /*left=*/false};
    if (is_cancelled_) return stopped();
    if (options_.links != nullptr) {
      inbox.lead.next_step(internal::current_stream(options_.links->device()), options_.most_ahead);
    }
    // Receives are posted before this waits for a packet. So when the packet arrives, the worker
    // can compute at once, and the next receives are posted already.
    post(worker);
    for (size_t k = 0; k < slots.size(); ++k) {
      Message& message = plan_.message(worker, slots[k]);
      if (message.from < 0) {
        if (!mailboxes_.take(worker, slots[k], &packets[k])) return stopped();
      } else {
        if (inbox.posted.empty()) post(worker);
        std::optional<Packet> packet = options_.links == nullptr
                                           ? receive_from_elsewhere(worker, slots[k], inbox)
                                           : receive_in_order(worker, slots[k], inbox);
        if (!packet) return stopped();
        packets[k] = std::move(*packet);
      }
    }
    return true;
  }

  void cancel() noexcept {
    // After a cancel, data received on an aborted link is garbage, and a layer may throw because of
    // that. Such an exception is not reported.
    const bool may_follow = options_.links != nullptr && is_cancelled_;
    is_cancelled_by_us_ = true;
    // If an exception is the reason for this call, it is being handled now. It is reported even if
    // other faults have been told already, and counts beside them until the record is decided.
    if (control_ != nullptr && (std::current_exception() != nullptr || !control_->failed()) &&
        !(may_follow && control_->failed())) {
      report();
    }
    cancel_here();
  }

  void finish() {
    end_departures();
    try {
      check_departures();
    } catch (const std::exception&) {
      if (control_ != nullptr && !control_->failed()) report();  // with the place of that packet
      throw;
    }
    for (auto& [to, outbox] : outboxes_) {
      if (outbox.thread.joinable()) {
        end_thread(outbox);
      } else {
        while (!outbox.sent.empty()) let_go(outbox, to);
      }
    }
    std::string symptom;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      symptom = symptom_;
    }
    if (!symptom.empty()) fail(symptom);
    if (is_cancelled_) fail("the run was canceled");
    if (options_.links != nullptr) {
      options_.links->let_follow(internal::current_stream(options_.links->device()));
    }
    watch_.reset();
    plan_.learn();
    is_finished_ = true;
  }

 private:
  using Pending = Transit::Pending;

  struct Posted {
    int32_t slot = 0;
    at::Tensor room;
    std::unique_ptr<Pending> pending;
  };
  struct Inbox {  // used by its worker alone
    std::deque<Posted> posted;
    size_t next = 0;                  // index in plan_.awaited() of the next slot to post
    std::set<int32_t> posted_ahead;   // slots that were posted before their turn in plan_.awaited()
    std::map<int32_t, Packet> early;  // packets that came before the worker asked for them
    HostLead lead;
    size_t steps = 0;
  };
  struct Sent {
    OutgoingPacket packet;
    int64_t bytes = 0;
    std::vector<std::unique_ptr<Pending>> pending;
  };
  struct Outbox {  // what this process sends to one rank
    std::deque<Sent> sent;
    int64_t bytes = 0;
    // Releases packets that have been received. It is started only if much is being sent.
    std::thread thread;
    std::condition_variable changed;
    bool is_last = false;
  };
  // The run and the step that this thread is at, for the report of an exception. A run is named by
  // its number and not by its address, because a thread outlives its run, and the next run may have
  // the same address.
  struct Running {
    uint64_t run = 0;
    int32_t worker = 0;
    size_t step = 0;
    bool left = false;  // the step is over, and what it has sent is at fault
  };
  // A packet for another process that is still arriving from a device.
  struct Departure {
    Message* message = nullptr;
    Packet packet;
    Running place;  // of the worker that has made it
  };
  static uint64_t next_number() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
  static Running& running() {
    thread_local Running running;
    return running;
  }

  void post(int32_t worker) {
    Inbox& inbox = inboxes_[static_cast<size_t>(worker)];
    const std::vector<int32_t>& awaited = plan_.awaited(worker);
    while (inbox.next < awaited.size() &&
           static_cast<int64_t>(inbox.posted.size()) < std::max<int64_t>(options_.window, 1)) {
      const int32_t next = awaited[inbox.next++];
      if (inbox.posted_ahead.count(next) == 0) inbox.posted.push_back(posted(worker, next));
    }
  }

  Posted posted(int32_t worker, int32_t slot) {
    const Message& message = plan_.message(worker, slot);
    Posted posted{slot, new_bytes(message.capacity), nullptr};
    try {
      posted.pending = transit_.add(group_.receive(posted.room, message.from, message.tag));
    } catch (const std::exception& error) {
      // The connection broke most likely because another rank failed. Then that rank's own fault
      // explains it better than this symptom.
      fail("receiving from " + rank_name(message.from) + " failed: " + error.what());
    }
    return posted;
  }

  // Takes the posted receive of the slot. It is the first in `posted`, unless the worker asks for
  // messages in another order than it receives them.
  Posted take_posted(int32_t worker, int32_t slot, Inbox& inbox) {
    const auto found = std::find_if(inbox.posted.begin(), inbox.posted.end(),
                                    [&](const Posted& posted) { return posted.slot == slot; });
    if (found == inbox.posted.end()) {
      inbox.posted_ahead.insert(slot);
      return posted(worker, slot);
    }
    Posted result = std::move(*found);
    inbox.posted.erase(found);
    return result;
  }

  // Receives the packet of a slot over a link. A link has no tags, so the packets that the sender
  // has sent before come first. They take no longer than the packet itself, which is sent after
  // them. No value: the run was canceled.
  std::optional<Packet> receive_in_order(int32_t worker, int32_t slot, Inbox& inbox) {
    if (auto early = inbox.early.extract(slot)) return std::move(early.mapped());
    const int32_t edge = plan_.message(worker, slot).edge;
    size_t& place = next_places_[static_cast<size_t>(edge)];
    while (true) {
      const int32_t next = plan_.in_order(edge).at(place);
      std::optional<Packet> packet = receive_from_elsewhere(worker, next, inbox);
      if (!packet) return std::nullopt;
      ++place;
      if (next == slot) return packet;
      inbox.early.emplace(next, std::move(*packet));
    }
  }

  // Receives a packet from another process. No value: the run was canceled.
  std::optional<Packet> receive_from_elsewhere(int32_t worker, int32_t slot, Inbox& inbox) {
    Message& message = plan_.message(worker, slot);
    Posted posted = take_posted(worker, slot, inbox);
    try {
      if (!posted.pending->wait()) return std::nullopt;
      at::Tensor head = std::move(posted.room);
      if (const auto bytes = announced_bytes(head, options_.greatest_packet)) {
        head = new_bytes(*bytes);
        auto whole = transit_.add(group_.receive(head, message.from, message.second_tag));
        if (!whole->wait()) return std::nullopt;
        message.wanted = *bytes;
      }
      if (options_.links != nullptr) return receive_by_link(head, message, inbox);
      IncomingPacket incoming(head, options_.greatest_packet);
      if (message.wanted == 0) message.wanted = incoming.head_bytes();
      std::vector<std::unique_ptr<Pending>> bodies;
      for (const at::Tensor& body : incoming.bodies()) {
        bodies.push_back(transit_.add(group_.receive(body, message.from, message.second_tag)));
      }
      for (auto& body : bodies) {
        if (!body->wait()) return std::nullopt;
      }
      return incoming.take();
    } catch (const DistributedFailure&) {
      throw;
    } catch (const c10::OutOfMemoryError&) {
      throw;  // this process's own failure
    } catch (const std::exception&) {
      fail("receiving from " + rank_name(message.from) +
           " failed: " + text::message_of_current_exception());
    }
  }

  Packet receive_by_link(const at::Tensor& head, Message& message, Inbox& inbox) {
    DeviceLinks& links = *options_.links;
    const Edge& edge = plan_.edge(message.edge);
    const c10::Stream stream = links.receiving_stream(edge);
    // All work of the receive is on the link's stream, so that it does not wait for other work of
    // the device.
    const internal::StreamScope scope(stream);
    IncomingPacket incoming(head, options_.greatest_packet, links.device());
    if (message.wanted == 0) message.wanted = incoming.head_bytes();
    links.receive(edge, incoming.bodies());
    inbox.lead.add(incoming.bodies());
    Packet packet = incoming.take();
    packet.ready.push_back(internal::record_event(stream));
    return packet;
  }

  // Sends copies of the tensors over the link. `*copied` becomes an event after which the packet's
  // own memory is not read any more.
  OutgoingPacket send_by_link(const Message& message, Packet& packet,
                              std::shared_ptr<c10::Event>& copied) {
    DeviceLinks& links = *options_.links;
    internal::arrive(packet, links.device());
    OutgoingPacket outgoing = encode(packet, kAloneFrom, links.device());
    // Copies are sent, because a stage of this process may change the tensors later. If that stage
    // waited for the link instead of a copy, it would wait for another process.
    for (at::Tensor& body : outgoing.bodies) body = body.clone();
    inboxes_[static_cast<size_t>(plan_.edge(message.edge).from_worker)].lead.add(outgoing.bodies);
    copied = internal::record_event(internal::current_stream(links.device()));
    links.send(plan_.edge(message.edge), outgoing.bodies);
    return outgoing;
  }

  void send_away(Message& message, Packet& packet, std::shared_ptr<c10::Event>& copied) {
    const bool by_link = options_.links != nullptr;
    Sent sent;
    try {
      // The tensors are put on the link before the head is sent, because the head tells the
      // receiver to receive them.
      sent.packet = by_link ? send_by_link(message, packet, copied) : encode(packet);
    } catch (const std::runtime_error& error) {
      fail("sending to " + rank_name(message.to) + " failed: " + error.what());
    }
    const at::Tensor& head = sent.packet.head;
    message.wanted = head.numel();
    const auto add = [&](const at::Tensor& bytes, int32_t tag) {
      sent.bytes += bytes.numel();
      sent.pending.push_back(transit_.add(group_.send(bytes, message.to, tag)));
    };
    try {
      if (head.numel() <= message.capacity) {
        add(head, message.tag);
      } else {
        add(announce(head.numel()), message.tag);
        add(head, message.second_tag);
      }
      for (const at::Tensor& body : sent.packet.bodies) {
        if (by_link) {
          sent.bytes += body.numel();
        } else {
          add(body, message.second_tag);
        }
      }
      // The bodies can go, because the link keeps their memory as long as it reads from that.
      if (by_link) sent.packet.bodies.clear();
    } catch (const std::exception& error) {
      fail("sending to " + rank_name(message.to) + " failed: " + error.what());
    }
    std::lock_guard<std::mutex> lock(mutex_);
    Outbox& outbox = outboxes_[message.to];
    outbox.bytes += sent.bytes;
    outbox.sent.push_back(std::move(sent));
    if (outbox.bytes > options_.unreceived && !outbox.thread.joinable()) {
      outbox.thread = std::thread([this, &outbox, to = message.to] { let_go_of_all(outbox, to); });
    }
    outbox.changed.notify_one();
  }

  void send_later(Message& message, Packet packet) {
    const std::lock_guard<std::mutex> lock(mutex_);
    departures_.push_back({&message, std::move(packet), running()});
    departures_.back().place.left = true;
    if (!departing_.joinable()) {
      // The scope puts the default back that the new thread changes for the whole process.
      const internal::DefaultThreadsScope scope;
      std::promise<void> is_set;
      departing_ = std::thread([this, &is_set, for_exit = internal::on_exiting_thread()] {
        internal::set_threads_of_this_thread(1);
        is_set.set_value();
        depart(for_exit);
      });
      is_set.get_future().wait();
    }
    departures_changed_.notify_one();
  }

  // Waits for the packets that are arriving from a device, in order, and sends them.
  void depart(bool for_exit) {
    const c10::NoGradGuard no_grad;
    while (auto departure = next_departure()) {
      const internal::WorkScope work(for_exit);
      try {
        // Without this guard CUDA would make a context on GPU 0, because this thread uses no GPU.
        const c10::DeviceGuard guard(departure->packet.ready.front()->device());
        internal::arrive(departure->packet, c10::kCPU);
        std::shared_ptr<c10::Event> copied;
        send_away(*departure->message, departure->packet, copied);
      } catch (const std::exception&) {
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          departure_error_ = std::current_exception();
          place_of_error_ = departure->place;
        }
        return cancel_here();
      }
    }
  }

  // No value: there will be none, or the run was canceled.
  std::optional<Departure> next_departure() {
    std::unique_lock<std::mutex> lock(mutex_);
    departures_changed_.wait(
        lock, [&] { return !departures_.empty() || is_last_departure_ || is_cancelled_; });
    if (departures_.empty() || is_cancelled_) return std::nullopt;
    Departure departure = std::move(departures_.front());
    departures_.pop_front();
    return departure;
  }

  void end_departures() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_last_departure_ = true;
      departures_changed_.notify_one();
    }
    const internal::WaitScope waits;
    if (departing_.joinable()) departing_.join();
  }

  // Throws, to one caller, what sending has thrown on the transport's thread. The exception is told
  // with the place of the worker that has made the packet.
  void check_departures() {
    std::exception_ptr error;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      error = std::exchange(departure_error_, nullptr);
      if (error != nullptr) running() = place_of_error_;
    }
    if (error != nullptr) std::rethrow_exception(error);
  }

  // Waits until the oldest packet has been received, and releases it. If that fails, keeps the
  // symptom and does not throw.
  void let_go(Outbox& outbox, int64_t to) noexcept {
    std::optional<Sent> sent;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      sent = std::move(outbox.sent.front());
      outbox.sent.pop_front();
    }
    std::string symptom;
    try {
      for (auto& pending : sent->pending) {
        if (!pending->wait()) break;
      }
      if (sent->packet.is_changed()) {
        symptom = "a tensor was changed in place while it was being sent to " + rank_name(to) +
                  ": a layer must not change in place what another stage gets";
      }
    } catch (const std::exception& error) {
      symptom = "sending to " + rank_name(to) + " failed: " + error.what();
    }
    sent->pending.clear();
    std::lock_guard<std::mutex> lock(mutex_);
    outbox.bytes -= sent->bytes;
    if (symptom_.empty() && !is_cancelled_) symptom_ = symptom;
  }

  void let_go_of_all(Outbox& outbox, int64_t to) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      outbox.changed.wait(lock, [&] { return !outbox.sent.empty() || outbox.is_last; });
      if (outbox.sent.empty()) return;
      lock.unlock();
      let_go(outbox, to);
      lock.lock();
    }
  }

  void end_thread(Outbox& outbox) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      outbox.is_last = true;
      outbox.changed.notify_one();
    }
    outbox.thread.join();
  }

  void cancel_here() noexcept {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_cancelled_ = true;
      departures_changed_.notify_one();
    }
    transit_.cancel();
    if (options_.links != nullptr) options_.links->abort();
    mailboxes_.cancel();
  }

  void report() noexcept {
    Fault fault;
    const Running& current = running();
    if (current.run == number_) {
      const std::vector<Step>& steps = program_.workers[static_cast<size_t>(current.worker)];
      fault.stage = steps[current.step].action.stage;
      fault.micro_batch = steps[current.step].action.micro_batch;
    }
    const bool has_exception = std::current_exception() != nullptr;
    try {
      if (!has_exception) {
        fault.text = "its part of the run was canceled";
        return control_->report(std::move(fault), epoch_);
      }
      throw;
    } catch (const DistributedFailure&) {
      if (control_->failed()) return;  // not this rank's own failure
      fault.text = text::message_of_current_exception();
      control_->report(std::move(fault), epoch_);
    } catch (...) {
      // The stage's thread may be in another layer by now.
      if (options_.current_layer != nullptr && fault.stage >= 0 && !current.left) {
        fault.layer = options_.current_layer(fault.stage);
      }
      fault.text = text::message_of_current_exception();
      control_->report(std::move(fault), epoch_);
    }
  }

  // The result of receive() after a cancel: false. Throws if another process has failed, or sending
  // on the transport's thread.
  bool stopped() {
    check_departures();
    if (control_ != nullptr && control_->failed() && !is_cancelled_by_us_) control_->check();
    return false;
  }

  [[noreturn]] void fail(const std::string& symptom) {
    if (control_ != nullptr) control_->throw_failure(symptom);
    throw std::runtime_error(symptom);
  }

  const uint64_t number_ = next_number();
  const Program& program_;
  MessagePlan& plan_;
  Group& group_;
  const int64_t rank_;
  Control* const control_;
  const int64_t epoch_;
  const RemoteTransportOptions options_;
  bool is_finished_ = false;
  std::atomic<bool> is_cancelled_{false};
  std::atomic<bool> is_cancelled_by_us_{false};

  std::mutex mutex_;  // guards outboxes_, symptom_ and departures
  Transit transit_;   // declared before the members that are in it, so destroyed after them
  std::string symptom_;
  internal::Mailboxes<Packet> mailboxes_;
  std::vector<Inbox> inboxes_;
  // [edge]: the index in in_order() of its next packet, used by the worker that receives.
  std::vector<size_t> next_places_;
  std::map<int64_t, Outbox> outboxes_;
  std::deque<Departure> departures_;
  bool is_last_departure_ = false;
  std::condition_variable departures_changed_;
  std::exception_ptr departure_error_;
  Running place_of_error_;
  std::thread departing_;  // sends what is in departures_; started if there is something

  std::optional<Control::Watch> watch_;
};

RemoteTransport::RemoteTransport(const Program& program, MessagePlan& plan, Group& group,
                                 int64_t rank, Control* control,
                                 const RemoteTransportOptions& options)
    : impl_(std::make_unique<Impl>(program, plan, group, rank, control, options)) {}
RemoteTransport::~RemoteTransport() = default;

void RemoteTransport::send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) {
  impl_->send(sends, packets);
}
bool RemoteTransport::receive(int32_t worker, const std::vector<int32_t>& slots,
                              std::vector<Packet>& packets) {
  return impl_->receive(worker, slots, packets);
}
void RemoteTransport::cancel() noexcept { impl_->cancel(); }
void RemoteTransport::finish() { impl_->finish(); }

}  // namespace gpipe::distributed
