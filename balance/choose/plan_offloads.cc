#include "balance/choose/plan_offloads.h"

#include <algorithm>
#include <utility>

#include "balance/step/explain.h"
#include "balance/step/offload_choices.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {
namespace {

// A prediction is off by at most this share where a plan of the memory is worth its seconds.
constexpr double kFarAbove = 1.15;

void predict(const PlanProblem& problem, PlanCandidate& candidate) {
  const Explanation explanation =
      explain(problem.chunkings[candidate.cut].profile, candidate.balance,
              explain_options(problem, candidate.cut, *candidate.schedule, candidate.checkpoints));
  candidate.step = explanation.step;
  candidate.memory.clear();
  for (const WorkerExplanation& worker : explanation.workers) {
    candidate.memory.push_back(worker.memory);
  }
  candidate.excess = 0;
}

// The most cells of the stage that are between their offload and their reload.
int64_t away_at_once(const Schedule& schedule, size_t stage) {
  int64_t away = 0, most = 0;
  for (const Action& action : schedule.actions(schedule.worker_of(static_cast<int64_t>(stage)))) {
    if (action.stage != static_cast<int64_t>(stage)) continue;
    if (action.kind == ActionKind::kOffload) most = std::max(most, ++away);
    if (action.kind == ActionKind::kReload) --away;
  }
  return most;
}

int64_t most_of(const PlanCandidate& candidate) {
  return *std::max_element(candidate.memory.begin(), candidate.memory.end());
}

}  // namespace

std::vector<PlanCandidate> offloaded(const PlanProblem& problem, const PlanCandidate& candidate,
                                     double more_time, const std::vector<int64_t>& most) {
  const Schedule without = without_offloads(*candidate.schedule);
  std::vector<PlanCandidate> found;
  for (Schedule& schedule :
       offload_choices(problem.chunkings[candidate.cut].profile, candidate.balance,
                       explain_options(problem, candidate.cut, without, candidate.checkpoints),
                       more_time, most)) {
    found.push_back(candidate);
    found.back().schedule = std::move(schedule);
    predict(problem, found.back());
  }
  return found;
}

std::vector<int64_t> cells_within(const Schedule& schedule, const std::vector<int64_t>& pinned,
                                  int64_t limit) {
  const int64_t micro_batches = schedule.micro_batches();
  std::vector<int64_t> most(pinned.size(), micro_batches);
  for (size_t j = 0; j < pinned.size(); ++j) {
    if (pinned[j] <= limit) continue;
    // A copy begins before its offload. So one cell more than are away has pinned memory.
    const int64_t having = std::min(away_at_once(schedule, j) + 1, micro_batches);
    most[j] = std::max<int64_t>(limit * having / pinned[j] - 1, 0);
  }
  return most;
}

std::vector<std::vector<PlanCandidate>> offloaded_candidates(const PlanProblem& problem,
                                                             const PlanSearch& search,
                                                             double more_time, double step,
                                                             int64_t limit, size_t most) {
  const bool recomputes = std::find(problem.checkpoints.begin(), problem.checkpoints.end(),
                                    Checkpoint::kAlways) != problem.checkpoints.end();
  std::vector<PlanCandidate> faster;
  const auto add = [&](const PlanCandidate& candidate) {
    if (candidate.step < step) faster.push_back(candidate);
  };
  const auto add_both = [&](PlanCandidate candidate) {
    add(candidate);
    const std::vector<Checkpoint> modes(candidate.checkpoints.size(), Checkpoint::kAlways);
    if (candidate.checkpoints == modes || !recomputes) return;
    candidate.checkpoints = modes;
    predict(problem, candidate);
    add(candidate);
  };
  add_both(search.best);
  for (const PlanCandidate& candidate : search.others) add_both(candidate);
  std::stable_sort(faster.begin(), faster.end(),
                   [](const PlanCandidate& a, const PlanCandidate& b) { return a.step < b.step; });
  std::vector<std::vector<PlanCandidate>> found;
  for (const PlanCandidate& candidate : faster) {
    if (found.size() >= most) break;
    if (problem.progress) problem.progress("offloads");
    std::vector<PlanCandidate> with = offloaded(problem, candidate, more_time);
    while (!with.empty() && !(with.front().step < step)) with.erase(with.begin());
    if (with.empty()) continue;
    if (static_cast<double>(most_of(with.front())) > kFarAbove * static_cast<double>(limit)) {
      continue;
    }
    found.push_back(std::move(with));
  }
  return found;
}

int64_t offloaded_cells(const Schedule& schedule) {
  int64_t count = 0;
  for (const std::vector<Action>& actions : schedule.table()) {
    count += std::count_if(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == ActionKind::kOffload;
    });
  }
  return count;
}

}  // namespace gpipe::balance
