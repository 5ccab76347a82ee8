#include "gpipe/schedule/random_schedule.h"

#include <utility>
#include <vector>

namespace gpipe::testing {
namespace {

// Which actions of a cell have run so far.
struct Cell {
  bool split = false;
  bool forward = false;
  bool input_gradient = false;  // the input gradient or the whole backward
  bool done = false;
};

class Table {
 public:
  Table(int64_t stages, int64_t micro_batches, MicroBatchOrder order, std::mt19937_64& random)
      : order_(order), cells_(stages, std::vector<Cell>(micro_batches)) {
    for (std::vector<Cell>& row : cells_) {
      for (Cell& cell : row) cell.split = random() % 2 == 0;
    }
  }

  // The actions whose inputs have all been computed.
  std::vector<Action> possible() const {
    std::vector<Action> result;
    for (size_t j = 0; j < cells_.size(); ++j) {
      for (size_t i = 0; i < cells_[j].size(); ++i) add_possible(j, i, result);
    }
    return result;
  }

  void run(const Action& action) {
    Cell& cell = cells_[action.stage][action.micro_batch];
    switch (action.kind) {
      case ActionKind::kForward:
        cell.forward = true;
        break;
      case ActionKind::kInputGradient:
        cell.input_gradient = true;
        break;
      case ActionKind::kBackward:
        cell.input_gradient = cell.done = true;
        break;
      case ActionKind::kWeightGradient:
        cell.done = true;
        break;
      case ActionKind::kOffload:
      case ActionKind::kReload:
        break;  // never possible()
    }
  }

 private:
  void add_possible(size_t j, size_t i, std::vector<Action>& result) const {
    const Cell& cell = cells_[j][i];
    const bool free = order_ == MicroBatchOrder::kAny || i == 0;
    auto add = [&](ActionKind kind) {
      result.push_back({kind, static_cast<int32_t>(j), static_cast<int32_t>(i)});
    };
    if (!cell.forward) {
      const bool arrived = j == 0 || cells_[j - 1][i].forward;
      if (arrived && (free || cells_[j][i - 1].forward)) add(ActionKind::kForward);
      return;
    }
    const bool may_accumulate = free || cells_[j][i - 1].done;
    if (!cell.input_gradient) {
      if (j + 1 < cells_.size() && !cells_[j + 1][i].input_gradient) return;
      if (cell.split) {
        add(ActionKind::kInputGradient);
      } else if (may_accumulate) {
        add(ActionKind::kBackward);
      }
    } else if (!cell.done && may_accumulate) {
      add(ActionKind::kWeightGradient);
    }
  }

  MicroBatchOrder order_;
  std::vector<std::vector<Cell>> cells_;  // [stage][micro-batch]
};

}  // namespace

Schedule random_schedule(int64_t stages, int64_t micro_batches, MicroBatchOrder order,
                         std::mt19937_64& random) {
  const auto workers = 1 + random() % static_cast<uint64_t>(stages);
  std::vector<size_t> worker_of(stages);
  for (size_t& worker : worker_of) worker = random() % workers;
  std::vector<std::vector<Action>> table(workers);
  Table cells(stages, micro_batches, order, random);
  for (std::vector<Action> possible = cells.possible(); !possible.empty();
       possible = cells.possible()) {
    const Action action = possible[random() % possible.size()];
    table[worker_of[action.stage]].push_back(action);
    cells.run(action);
  }
  return Schedule::create(stages, micro_batches, std::move(table));
}

}  // namespace gpipe::testing
