#include "gpipe/testing/processes/loopback_processes.h"

#include <cstddef>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/packets/remote_transport.h"
#include "gpipe/testing/processes/memory_group.h"

namespace gpipe::distributed {
namespace {

using internal::Packet;
using internal::Processes;

class NothingToDo final : public Processes::Call {
 public:
  void done() override {}
  void failed() noexcept override {}
  void failed_on_all() noexcept override {}
};

// The plans of all ranks. Each rank has a plan of its own, as in separate processes.
struct Plans final : Processes::Messages {
  explicit Plans(const Program& program) {
    std::vector<int64_t> ranks(program.workers.size());
    std::iota(ranks.begin(), ranks.end(), int64_t{0});
    for (size_t rank = 0; rank < ranks.size(); ++rank) plans.emplace_back(program, ranks);
  }

  std::vector<MessagePlan> plans;  // [worker]
};

}  // namespace

class LoopbackProcesses::LoopbackRun final : public Run {
 public:
  LoopbackRun(LoopbackProcesses& processes, const Program& program, Plans& plans, bool by_links)
      : processes_(processes), plans_(plans), by_links_(by_links) {
    for (size_t worker = 0; worker < plans.plans.size(); ++worker) {
      const auto rank = static_cast<int64_t>(worker);
      groups_.push_back(network_.group(rank));
      RemoteTransportOptions options;
      if (by_links_) options.links = processes.links_.at(worker).get();
      transports_.push_back(std::make_unique<RemoteTransport>(
          program, plans.plans[worker], *groups_.back(), rank, /*control=*/nullptr, options));
    }
  }
  ~LoopbackRun() override {
    transports_.clear();
    if (!is_finished_) processes_.links_.clear();  // the links were aborted
  }

  void send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) override {
    for (size_t k = 0; k < sends.size(); ++k) {
      const int32_t to = sends[k].worker;
      const Message& message = plans_.plans[static_cast<size_t>(to)].message(to, sends[k].slot);
      const int64_t from = message.from < 0 ? to : message.from;
      std::vector<Packet> packet;
      packet.push_back(std::move(packets[k]));
      transports_[static_cast<size_t>(from)]->send({sends[k]}, packet);
    }
  }
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<Packet>& packets) override {
    return transports_[static_cast<size_t>(worker)]->receive(worker, slots, packets);
  }
  void cancel() noexcept override {
    for (const auto& transport : transports_) transport->cancel();
  }
  void finish() override {
    for (const auto& transport : transports_) transport->finish();
    processes_.moved_ += network_.moved();
    is_finished_ = true;
  }
  bool is_on_device() const override { return by_links_; }

 private:
  LoopbackProcesses& processes_;
  Plans& plans_;
  const bool by_links_;
  bool is_finished_ = false;
  MemoryNetwork network_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<RemoteTransport>> transports_;
};

LoopbackProcesses::LoopbackProcesses(const LinkKind* kind) : kind_(kind) {}
LoopbackProcesses::~LoopbackProcesses() = default;

bool LoopbackProcesses::connect_links(const MessagePlan& plan, c10::Device device) {
  // The most links. Each link needs a stream at either end, and here all streams belong to one
  // device.
  constexpr size_t kMostLinks = 12;
  size_t ends = 0;
  for (const auto& of_one : links_) ends += of_one->size();
  std::vector<Edge> missing;
  for (const Edge& edge : plan.edges()) {
    const auto from = static_cast<size_t>(edge.from);
    if (from >= links_.size() || !links_[from]->has(edge, DeviceLink::End::kSends)) {
      missing.push_back(edge);
    }
  }
  if (ends / 2 + missing.size() > kMostLinks) return false;
  while (links_.size() < plan.rank_of_worker().size()) {
    links_.push_back(std::make_unique<DeviceLinks>(*kind_, device, [](const std::string&) {}));
  }
  for (const Edge& edge : missing) {
    const std::string id = kind_->new_id();
    links_.at(static_cast<size_t>(edge.from))->begin(edge, DeviceLink::End::kSends, id);
    links_.at(static_cast<size_t>(edge.to))->begin(edge, DeviceLink::End::kReceives, id);
  }
  for (bool all = false; !all; std::this_thread::yield()) {
    all = true;  // are_connected() must be called again and again for each link
    for (const auto& of_one : links_) all = of_one->are_connected() && all;
  }
  return true;
}

std::unique_ptr<Processes::Call> LoopbackProcesses::begin_call() {
  return std::make_unique<NothingToDo>();
}

std::vector<std::string> LoopbackProcesses::exchange(const std::string& /*name*/,
                                                     const std::string& value,
                                                     bool /*is_patient*/) {
  ++round_trips_;
  return {value};
}

void LoopbackProcesses::agree(const std::string& /*name*/, const std::string& /*value*/) {
  ++round_trips_;
}

void LoopbackProcesses::move(const std::vector<Parcel>& sends,
                             const std::vector<Parcel>& receives) {
  if (sends.empty() && receives.empty()) return;
  throw std::logic_error("there is no other process");
}

std::unique_ptr<Processes::Run> LoopbackProcesses::begin_run(
    const Program& program, const std::vector<int64_t>& /*process_of_worker*/,
    std::shared_ptr<Messages>& messages, std::function<std::string(int64_t)> /*current_layer*/,
    c10::Device device) {
  if (messages == nullptr) messages = std::make_shared<Plans>(program);
  auto& plans = static_cast<Plans&>(*messages);
  const bool by_links = kind_ != nullptr && kind_->device_type() == device.type() &&
                        connect_links(plans.plans.front(), device);
  return std::make_unique<LoopbackRun>(*this, program, plans, by_links);
}

}  // namespace gpipe::distributed
