#include "balance/step/shared_cores.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/schedule/action.h"

namespace gpipe::balance {
namespace {

struct Edge {
  double time;
  int64_t worker;
  int change;  // +1: an action begins, -1: it ends
};

}  // namespace

SharedRun share_cores(const Simulation& run, int64_t cores, double contention) {
  std::vector<Edge> edges;
  for (size_t worker = 0; worker < run.workers.size(); ++worker) {
    for (const TimedAction& timed : run.workers[worker]) {
      if (!computes(timed.action.kind)) continue;  // it waits for a copy
      edges.push_back({timed.start, static_cast<int64_t>(worker), 1});
      edges.push_back({timed.end, static_cast<int64_t>(worker), -1});
    }
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.time < b.time; });

  SharedRun shared;
  shared.busy.assign(run.workers.size(), 0.0);
  std::vector<int64_t> active(run.workers.size(), 0);
  // [worker] When the worker's current action began, in the stretched time.
  std::vector<double> since(run.workers.size(), 0.0);
  int64_t running = 0;  // workers in an action
  double last = 0.0;
  for (const Edge& edge : edges) {
    double factor = running > 1 ? contention : 1.0;
    if (cores > 0 && running > cores) {
      factor *= static_cast<double>(running) / static_cast<double>(cores);
    }
    const double passed = (edge.time - last) * factor;
    shared.makespan += passed;
    last = edge.time;
    const auto worker = static_cast<size_t>(edge.worker);
    int64_t& count = active[worker];
    // The end of one action and the begin of the next may have the same time, in any order. So a
    // worker runs while it has more begins than ends.
    const bool was = count > 0;
    count += edge.change;
    const bool is = count > 0;
    running += static_cast<int64_t>(is) - static_cast<int64_t>(was);
    if (is && !was) since[worker] = shared.makespan;
    if (was && !is) shared.busy[worker] += shared.makespan - since[worker];
  }
  return shared;
}

}  // namespace gpipe::balance
