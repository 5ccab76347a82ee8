#include "gpipe/distributed/clock_offset.h"

#include <ATen/ops/empty.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

namespace gpipe::distributed {
namespace {

using Parcel = internal::Processes::Parcel;

constexpr int kRounds = 8;

at::Tensor room() { return at::empty({sizeof(int64_t)}, at::kByte); }
at::Tensor message(int64_t number) {
  at::Tensor bytes = room();
  std::memcpy(bytes.mutable_data_ptr(), &number, sizeof number);
  return bytes;
}
int64_t number_in(const at::Tensor& bytes) {
  int64_t number = 0;
  std::memcpy(&number, bytes.const_data_ptr(), sizeof number);
  return number;
}

// Sends rank `to` this process's time, each time that rank `to` asks.
void tell(internal::Processes& processes, int64_t to, const Clock& clock) {
  for (int round = 0; round < kRounds; ++round) {
    processes.move({}, {{to, room()}});
    processes.move({{to, message(clock.now())}}, {});
  }
}

int64_t ask(internal::Processes& processes, const Clock& clock) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  int64_t offset = 0;
  // Rank 0 answers one rank after another, so the first answer may take long.
  for (int round = 0; round < kRounds; ++round) {
    const at::Tensor answer = room();
    const int64_t before = clock.now();
    processes.move({{0, message(0)}}, {{0, answer}});
    const int64_t after = clock.now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    offset = number_in(answer) - (before + (after - before) / 2);
  }
  return offset;
}

}  // namespace

Clock steady_clock_of_machine() {
  Clock clock;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> clock.name;
  clock.now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  return clock;
}

int64_t clock_offset(internal::Processes& processes, const Clock& clock) {
  const std::vector<std::string> names = processes.exchange("the clock", clock.name, false);
  const auto is_other = [&](int64_t rank) {
    const std::string& name = names[static_cast<size_t>(rank)];
    return name.empty() || name != names.front();
  };
  const int64_t own = processes.rank();
  if (own > 0) return is_other(own) ? ask(processes, clock) : 0;
  for (int64_t rank = 1; rank < processes.size(); ++rank) {
    if (is_other(rank)) tell(processes, rank, clock);
  }
  return 0;
}

}  // namespace gpipe::distributed
