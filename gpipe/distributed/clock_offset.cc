#include "gpipe/distributed/clock_offset.h"

#include <chrono>
#include <fstream>
#include <limits>
#include <vector>

#include "gpipe/internal/tensors/byte_tensor.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {
namespace {

constexpr int kRounds = 8;

at::Tensor message(int64_t number) { return internal::tensor_of_bytes(internal::to_bytes(number)); }

// Sends rank `to` this process's time, each time that rank `to` asks.
void tell(internal::Processes& processes, int64_t to, const Clock& clock) {
  for (int round = 0; round < kRounds; ++round) {
    processes.move({}, {{to, message(0)}});
    processes.move({{to, message(clock.now())}}, {});
  }
}

int64_t ask(internal::Processes& processes, const Clock& clock) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  int64_t offset = 0;
  // Rank 0 answers one rank after another, so the first answer may take long.
  for (int round = 0; round < kRounds; ++round) {
    const at::Tensor answer = message(0);
    const int64_t before = clock.now();
    processes.move({{0, message(0)}}, {{0, answer}});
    const int64_t after = clock.now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    offset =
        internal::from_bytes<int64_t>(internal::bytes_in(answer)) - (before + (after - before) / 2);
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
