#include "balance/choose/fitting_cut.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

#include "balance/costs/profile_checks.h"
#include "balance/cut/pieces.h"
#include "balance/step/cell_costs.h"
#include "balance/step/recomputed_cells.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

[[noreturn]] void fail(const std::string& text) {
  throw std::invalid_argument("fitting_cut: " + text);
}

// The most micro-batches whose inputs and activations a stage holds at a time. A micro-batch that
// waits for its weight gradients counts with all its inputs and activations, because the profile
// knows the part that really waits only for stages, not for layers.
struct Held {
  int64_t inputs = 0;
  int64_t kept = 0;
  bool recomputes = false;
};

int64_t inputs_of(const HeldParts& parts) { return parts.received || parts.waiting ? 1 : 0; }
int64_t kept_of(const HeldParts& parts) { return parts.kept || parts.waiting ? 1 : 0; }

std::vector<Held> held_by_stages(const ExplainOptions& options, int64_t stages) {
  const Schedule schedule = options.schedule ? options.schedule(stages, options.chunks)
                                             : Schedule::one_f_one_b(stages, options.chunks);
  const std::vector<std::vector<bool>> recomputed =
      recomputed_cells(schedule, checkpoint_modes(options, stages));
  std::vector<Held> result(static_cast<size_t>(stages));
  for (int64_t j = 0; j < stages; ++j) {
    Held& held = result[static_cast<size_t>(j)];
    int64_t inputs = 0;
    int64_t kept = 0;
    for (const Action& action : schedule.actions(schedule.worker_of(j))) {
      if (action.stage != j) continue;
      const bool again =
          recomputed[static_cast<size_t>(j)][static_cast<size_t>(action.micro_batch)];
      held.recomputes = held.recomputes || again;
      const CellMemory memory = cell_memory(action.kind, again);
      inputs -= inputs_of(memory.before);
      kept -= kept_of(memory.before);
      held.inputs = std::max(held.inputs, inputs + inputs_of(memory.during));
      held.kept = std::max(held.kept, kept + kept_of(memory.during));
      inputs += inputs_of(memory.after);
      kept += kept_of(memory.after);
    }
  }
  return result;
}

// The costs of a block of layers in a partition; layers are added at its end.
class Block {
 public:
  Block(const Profile& profile, const std::vector<std::vector<SkipProfile>>& skips_to,
        double param_scale, const Held& held, size_t first)
      : profile_(profile),
        skips_to_(skips_to),
        param_scale_(param_scale),
        held_(held),
        first_(first),
        received_(
            static_cast<double>(first == 0 ? profile.input : profile.layers[first - 1].output)) {}

  void add(size_t index) {
    const LayerProfile& layer = profile_.layers[index];
    forward_ += layer.forward;
    backward_ += layer.backward;
    state_ +=
        static_cast<double>(layer.parameters) * param_scale_ + static_cast<double>(layer.buffers);
    kept_ += static_cast<double>(layer.kept);
    workspace_ = std::max(workspace_, static_cast<double>(layer.workspace));
    for (const SkipProfile& skip : skips_to_[index]) {
      if (skip.from < static_cast<int64_t>(first_)) received_ += static_cast<double>(skip.bytes);
    }
  }

  // time() and memory() are monotonic: another layer never makes them smaller.
  double time() const { return forward_ * (held_.recomputes ? 2 : 1) + backward_; }
  double memory() const {
    return state_ + static_cast<double>(held_.inputs) * received_ +
           static_cast<double>(held_.kept) * kept_ + workspace_;
  }

 private:
  const Profile& profile_;
  const std::vector<std::vector<SkipProfile>>& skips_to_;
  const double param_scale_;
  const Held& held_;
  const size_t first_;
  double received_;
  double forward_ = 0;
  double backward_ = 0;
  double state_ = 0;
  double kept_ = 0;
  double workspace_ = 0;
};

// The cost of a block in a partition, as the search sees it.
struct Cost {
  // The cost whose largest value over a cut counts. Another layer never makes it smaller.
  double largest = 0;
  double sum = 0;  // the cost whose sum over a cut counts
};

class FittingCutSearch {
 public:
  FittingCutSearch(const Profile& profile, const FittingCutOptions& options)
      : profile_(profile),
        options_(options),
        layers_(profile.layers.size()),
        partitions_(options.limits.size()),
        skips_to_(layers_),
        pieces_(static_cast<int64_t>(layers_), options.keep_together, "fitting_cut: ") {
    check_profile(profile, "fitting_cut: the profile cannot have been measured: ");
    if (partitions_ < 1 || static_cast<int64_t>(partitions_) > pieces_.size()) {
      fail("limits has " + std::to_string(partitions_) + " values, one for each partition, but " +
           std::to_string(pieces_.size()) +
           " layers may be separated and each partition needs one; give fewer partitions");
    }
    held_ = held_by_stages(options.explain, static_cast<int64_t>(partitions_));
    for (const SkipProfile& skip : profile.skips) {
      skips_to_[static_cast<size_t>(skip.to)].push_back(skip);
    }
  }

  // Returns the cut with the smallest largest cost, and among such cuts the one with the smallest
  // sum. `cost(block, partition)` returns a Cost.
  template <typename CostOf>
  std::optional<std::vector<int64_t>> best(const CostOf& cost) const {
    // [number of layers before] The smallest largest cost so far.
    std::vector<double> least(layers_ + 1, kNever);
    least[0] = -kNever;
    for (size_t j = 0; j < partitions_; ++j) {
      std::vector<double> next(layers_ + 1, kNever);
      for_each_block(
          j, least, kNever, cost, [&](size_t first, size_t past, const Cost& block_cost) {
            next[past] = std::min(next[past], std::max(least[first], block_cost.largest));
          });
      least = std::move(next);
    }
    const double limit = least[layers_];
    if (limit == kNever) return std::nullopt;

    // The smallest sum among the cuts whose largest cost is at most `limit`.
    std::vector<double> sums(layers_ + 1, kNever);
    sums[0] = 0;
    std::vector<std::vector<size_t>> firsts(partitions_, std::vector<size_t>(layers_ + 1));
    for (size_t j = 0; j < partitions_; ++j) {
      std::vector<double> next(layers_ + 1, kNever);
      for_each_block(j, sums, limit, cost, [&](size_t first, size_t past, const Cost& block_cost) {
        if (!(sums[first] + block_cost.sum < next[past])) return;
        next[past] = sums[first] + block_cost.sum;
        firsts[j][past] = first;
      });
      sums = std::move(next);
    }
    std::vector<int64_t> balance(partitions_);
    size_t past = layers_;
    for (size_t j = partitions_; j-- > 0;) {
      balance[j] = static_cast<int64_t>(past - firsts[j][past]);
      past = firsts[j][past];
    }
    return balance;
  }

 private:
  // Visits the blocks that partition j can have behind the layers that `reached` marks, if their
  // largest cost is at most `limit`.
  template <typename CostOf, typename Visit>
  void for_each_block(size_t j, const std::vector<double>& reached, double limit,
                      const CostOf& cost, const Visit& visit) const {
    const size_t later = partitions_ - 1 - j;
    for (size_t first = j; first + later < layers_; ++first) {
      if (reached[first] == kNever) continue;
      Block block(profile_, skips_to_, options_.explain.param_scale, held_[j], first);
      for (size_t past = first + 1; past + later <= layers_; ++past) {
        block.add(past - 1);
        const Cost block_cost = cost(block, j);
        if (block_cost.largest > limit || block_cost.largest == kNever) break;
        if (pieces_.may_cut(static_cast<int64_t>(past)) && (later > 0 || past == layers_))
          visit(first, past, block_cost);
      }
    }
  }

  const Profile& profile_;
  const FittingCutOptions& options_;
  const size_t layers_;
  const size_t partitions_;
  std::vector<std::vector<SkipProfile>> skips_to_;  // [layer]
  const Pieces pieces_;
  std::vector<Held> held_;  // [partition]
};

}  // namespace

std::optional<std::vector<int64_t>> fastest_fitting_cut(const Profile& profile,
                                                        const FittingCutOptions& options) {
  return FittingCutSearch(profile, options).best([&](const Block& block, size_t j) {
    const bool fits = block.memory() <= static_cast<double>(options.limits[j]);
    return fits ? Cost{block.time(), block.time() * block.time()} : Cost{kNever, kNever};
  });
}

std::vector<int64_t> smallest_cut(const Profile& profile, const FittingCutOptions& options) {
  return *FittingCutSearch(profile, options).best([&](const Block& block, size_t j) {
    const double memory = block.memory();
    return Cost{memory - static_cast<double>(options.limits[j]), memory * memory};
  });
}

}  // namespace gpipe::balance
