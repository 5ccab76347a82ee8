#include "gpipe/testing/processes/memory_group.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::distributed {

struct MemoryNetwork::End {
  at::Tensor bytes;
  enum { kWaiting, kDone, kCancelled, kTooLarge } state = kWaiting;
};

class MemoryNetwork::MemoryTransfer final : public Transfer {
 public:
  MemoryTransfer(MemoryNetwork& network, std::shared_ptr<End> end)
      : network_(network), end_(std::move(end)) {}

  bool wait() override {
    std::unique_lock<std::mutex> lock(network_.mutex_);
    network_.changed_.wait(lock, [&] { return end_->state != End::kWaiting; });
    if (end_->state == End::kTooLarge) {
      throw std::runtime_error("a message of " + std::to_string(end_->bytes.numel()) +
                               " bytes is larger than what it is received into");
    }
    return end_->state == End::kDone;
  }
  void cancel() override {
    std::lock_guard<std::mutex> lock(network_.mutex_);
    if (end_->state == End::kWaiting) end_->state = End::kCancelled;
    network_.changed_.notify_all();
  }

 private:
  MemoryNetwork& network_;
  std::shared_ptr<End> end_;
};

class MemoryNetwork::MemoryGroup final : public Group {
 public:
  MemoryGroup(MemoryNetwork& network, int64_t rank) : network_(network), rank_(rank) {}

  std::unique_ptr<Transfer> send(const at::Tensor& bytes, int64_t to, int32_t tag) override {
    return network_.begin({rank_, to, tag}, true, bytes);
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& bytes, int64_t from, int32_t tag) override {
    return network_.begin({from, rank_, tag}, false, bytes);
  }

 private:
  MemoryNetwork& network_;
  int64_t rank_;
};

std::unique_ptr<Group> MemoryNetwork::group(int64_t rank) {
  return std::make_unique<MemoryGroup>(*this, rank);
}

int64_t MemoryNetwork::moved() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return moved_;
}

int64_t MemoryNetwork::most_waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return most_waiting_;
}

std::unique_ptr<Transfer> MemoryNetwork::begin(const Key& key, bool sends,
                                               const at::Tensor& bytes) {
  auto end = std::make_shared<End>();
  end->bytes = bytes;
  std::lock_guard<std::mutex> lock(mutex_);
  Line& line = lines_[key];
  (sends ? line.sends : line.receives).push_back(end);
  int64_t& waiting = waiting_[std::get<0>(key)];
  if (sends) most_waiting_ = std::max(most_waiting_, ++waiting);
  while (!line.sends.empty() && !line.receives.empty()) {
    const std::shared_ptr<End> from = std::move(line.sends.front());
    const std::shared_ptr<End> to = std::move(line.receives.front());
    line.sends.pop_front();
    line.receives.pop_front();
    --waiting;
    if (from->state != End::kWaiting || to->state != End::kWaiting) continue;
    if (from->bytes.numel() > to->bytes.numel()) {
      from->state = to->state = End::kTooLarge;
      continue;
    }
    if (from->bytes.numel() > 0) {
      std::memcpy(to->bytes.mutable_data_ptr(), from->bytes.const_data_ptr(),
                  static_cast<size_t>(from->bytes.numel()));
    }
    from->state = to->state = End::kDone;
    ++moved_;
  }
  changed_.notify_all();
  return std::make_unique<MemoryTransfer>(*this, std::move(end));
}

}  // namespace gpipe::distributed
