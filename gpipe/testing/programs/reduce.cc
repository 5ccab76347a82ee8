#include "gpipe/testing/programs/reduce.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace gpipe::testing::programs {
namespace {

constexpr int kMostRuns = 600;
constexpr int kTries = 8;  // how often a failure that does not occur in each run is tried

void drop_layers(Program& program, size_t begin, size_t count) {
  program.layers.erase(program.layers.begin() + static_cast<int64_t>(begin),
                       program.layers.begin() + static_cast<int64_t>(begin + count));
  size_t first = 0;
  std::vector<int64_t> balance;
  std::vector<Checkpoint> checkpoints;
  for (size_t j = 0; j < program.balance.size(); ++j) {
    const size_t last = first + static_cast<size_t>(program.balance[j]);
    const size_t gone = std::min(last, begin + count) - std::min(last, std::max(first, begin));
    const int64_t left =
        program.balance[j] - static_cast<int64_t>(begin + count > first ? gone : 0);
    if (left > 0) {
      balance.push_back(left);
      checkpoints.push_back(program.checkpoints[j]);
    }
    first = last;
  }
  program.balance = std::move(balance);
  program.checkpoints = std::move(checkpoints);
}

// Smaller programs than `program`, the most promising first.
std::vector<Program> smaller(const Program& program) {
  std::vector<Program> result;
  auto with = [&](auto change) {
    Program next = program;
    change(next);
    result.push_back(std::move(next));
  };
  const size_t layers = program.layers.size();
  for (size_t count = layers - 1; count >= 1; --count) {
    for (size_t begin = 0; begin + count <= layers; ++begin) {
      with([&](Program& next) { drop_layers(next, begin, count); });
    }
  }
  // Removes two layers that belong together, such as a stash and its pop.
  for (size_t a = 0; a + 2 < layers; ++a) {
    for (size_t b = a + 2; b < layers && layers > 2; ++b) {
      with([&](Program& next) {
        drop_layers(next, b, 1);
        drop_layers(next, a, 1);
      });
    }
  }
  for (size_t j = 0; j + 1 < program.balance.size(); ++j) {
    with([&](Program& next) {
      next.balance[j] += next.balance[j + 1];
      next.balance.erase(next.balance.begin() + static_cast<int64_t>(j) + 1);
      next.checkpoints.erase(next.checkpoints.begin() + static_cast<int64_t>(j) + 1);
    });
  }
  for (int64_t calls = 1; calls < program.calls; ++calls) {
    with([&](Program& next) { next.calls = calls; });
  }
  for (int64_t chunks = 1; chunks < program.chunks; ++chunks) {
    for (int64_t rows = chunks; rows < std::min(program.rows, 3 * chunks); ++rows) {
      with([&](Program& next) {
        next.chunks = chunks;
        next.rows = rows;
      });
    }
    with([&](Program& next) { next.chunks = chunks; });
  }
  for (int64_t rows = 1; rows < program.rows; ++rows) {
    with([&](Program& next) { next.rows = rows; });
  }
  for (size_t j = 0; j < program.checkpoints.size(); ++j) {
    if (program.checkpoints[j] != Checkpoint::kNever) {
      with([&](Program& next) { next.checkpoints[j] = Checkpoint::kNever; });
    }
  }
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    if (program.inputs[k].requires_grad) {
      with([&](Program& next) { next.inputs[k].requires_grad = false; });
    }
    if (program.inputs[k].layout != Layout::kContiguous) {
      with([&](Program& next) { next.inputs[k].layout = Layout::kContiguous; });
    }
  }
  if (program.optimizer != Optimizer::kNone) {
    with([](Program& next) { next.optimizer = Optimizer::kNone; });
  }
  if (program.fails_first) with([](Program& next) { next.fails_first = false; });
  if (program.asked != Ask::kAll) with([](Program& next) { next.asked = Ask::kAll; });
  if (program.one_worker) with([](Program& next) { next.one_worker = false; });
  if (program.rounding != Rounding::kNearest) {
    with([](Program& next) { next.rounding = Rounding::kNearest; });
  }
  if (program.flush_denormals) with([](Program& next) { next.flush_denormals = false; });
  if (program.graphs) with([](Program& next) { next.graphs = false; });
  if (program.autocast) with([](Program& next) { next.autocast = false; });
  if (program.deferred_batch_norm) with([](Program& next) { next.deferred_batch_norm = false; });
  if (program.target_requires_grad) with([](Program& next) { next.target_requires_grad = false; });
  if (!program.train) with([](Program& next) { next.train = true; });
  if (program.loss != Loss::kMse && program.loss != Loss::kCrossEntropy) {
    with([](Program& next) { next.loss = Loss::kMse; });
  }
  return result;
}

}  // namespace

Reduced reduce(Program program, Outcome outcome) {
  int runs = 0;
  // If a failure occurs in every try, one try is enough.
  int failures = 0;
  for (int k = 0; k < kTries; ++k) failures += run(program).failed() ? 1 : 0;
  const int tries = failures == kTries ? 1 : kTries;
  bool progress = true;
  while (progress && runs < kMostRuns) {
    progress = false;
    for (Program& candidate : smaller(program)) {
      for (int k = 0; k < tries && runs < kMostRuns && !progress; ++k, ++runs) {
        Outcome next = run(candidate);
        if (!next.failed() || next.category != outcome.category) continue;
        program = std::move(candidate);
        outcome = std::move(next);
        progress = true;
      }
      if (progress) break;
    }
  }
  return {std::move(program), std::move(outcome)};
}

}  // namespace gpipe::testing::programs
