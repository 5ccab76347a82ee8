#include "balance/choose/order_search.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/placement.h"

namespace gpipe::balance {

SearchOptions order_search(const PlanProblem& problem, const PlanCandidate& candidate,
                           const Explanation& explanation) {
  const Chunking& chunking = problem.chunkings[candidate.cut];
  SearchOptions options;
  options.placement = candidate.schedule->placement();
  options.micro_batches = static_cast<int64_t>(chunking.sizes.size());
  options.costs.clear();
  options.activation_bytes.clear();
  options.waiting_bytes.clear();
  std::vector<double> fixed(static_cast<size_t>(problem.devices));
  std::vector<double> recomputed(fixed.size());
  for (size_t j = 0; j < explanation.partitions.size(); ++j) {
    const PartitionExplanation& partition = explanation.partitions[j];
    const bool again = partition.recompute > partition.forward / 2;
    const double more = problem.machine.overhead;
    const double recompute = again ? partition.forward : 0.0;
    options.costs.push_back({partition.forward + more, partition.backward + recompute + more,
                             partition.input_gradient + recompute + more,
                             partition.weight_gradient + more});
    options.activation_bytes.push_back(
        static_cast<double>(partition.received + (again ? 0 : partition.kept)));
    options.waiting_bytes.push_back(static_cast<double>(partition.waiting));
    if (j + 1 < explanation.partitions.size()) {
      const auto last = static_cast<size_t>(partition.layers.last);
      options.activation_transfer.push_back(
          problem.machine.seconds(static_cast<double>(chunking.profile.layers[last].output)));
    }
    const auto device = static_cast<size_t>(options.placement.worker_of(static_cast<int64_t>(j)));
    fixed[device] += static_cast<double>(partition.fixed);
    if (again) {
      recomputed[device] = std::max(recomputed[device], static_cast<double>(partition.kept));
    }
  }
  options.gradient_transfer = options.activation_transfer;
  // The bytes of skips are already in what a partition receives; here come the times of their
  // transfers.
  const auto partition_of = [&](int64_t layer) {
    int64_t j = 0;
    while (explanation.partitions[static_cast<size_t>(j)].layers.last < layer) ++j;
    return j;
  };
  for (const SkipProfile& skip : chunking.profile.skips) {
    const int64_t from = partition_of(skip.from);
    const int64_t to = partition_of(skip.to);
    if (from == to) continue;
    const double takes = problem.machine.seconds(static_cast<double>(skip.bytes));
    options.skips.push_back({from, to, takes, takes});
  }
  for (size_t d = 0; d < fixed.size() && !problem.limits.empty(); ++d) {
    const double room = static_cast<double>(problem.limits[d]) - fixed[d] - recomputed[d];
    options.memory_limit.push_back(std::max(room, 0.0));
  }
  return options;
}

}  // namespace gpipe::balance
