// Whether the machines have the memory that a ResilientRun's snapshots take.
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpipe/distributed/meet/addresses.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/resilient/resilient_run.h"
#include "machine/memory.h"

namespace gpipe {
namespace {

using nlohmann::json;

std::string megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace

namespace internal {

std::string lack_of_memory(const std::vector<MemoryOfRank>& ranks) {
  struct Machine {
    int64_t processes = 0, to_come = 0, available = 0;
  };
  std::map<std::string, Machine> machines;  // by the name of the host
  for (const MemoryOfRank& rank : ranks) {
    Machine& machine = machines[rank.host];
    ++machine.processes;
    machine.to_come += rank.to_come;
    machine.available = rank.available;
  }
  for (const auto& [host, machine] : machines) {
    if (machine.available == 0 || machine.to_come <= machine.available) continue;
    return absl::StrCat("the snapshots of the ", machine.processes, " processes on ", host,
                        " take ", megabytes(machine.to_come), " more of its memory, and ",
                        megabytes(machine.available),
                        " are available: start fewer processes on it, or take more machines");
  }
  return "";
}

}  // namespace internal

void ResilientRun::check_memory() {
  const json own = {distributed::host_name(), counts_.planned_bytes - counts_.snapshot_bytes,
                    machine::available_memory(), counts_.recoveries};
  int64_t recoveries = 0;  // of the run: a process that was started again has fewer
  std::vector<internal::MemoryOfRank> ranks;
  internal::Processes& processes = *world_.processes();
  internal::in_call(&processes, [&] {
    for (const std::string& text :
         processes.exchange("ResilientRun: the memory", own.dump(), /*is_patient=*/true)) {
      const json rank = json::parse(text);
      ranks.push_back({rank.at(0), rank.at(1), rank.at(2)});
      recoveries = std::max(recoveries, rank.at(3).get<int64_t>());
    }
    return true;
  });
  if (options_.world.announce) {
    say(absl::StrCat("snapshots every ", options_.snapshot_every, " steps: at most ",
                     megabytes(counts_.planned_bytes), " of host memory in this process"));
  }
  const std::string lack = internal::lack_of_memory(ranks);
  if (lack.empty()) return;
  // A run that goes on after a death may do so in time, so it is not ended for that.
  if (recoveries == 0) throw std::runtime_error("ResilientRun: " + lack);
  say(lack);
}

}  // namespace gpipe
