// fitting_cut: cuts a model's layers into partitions with a memory limit each, as a profile
// predicts.
//
// partition() knows one size of each layer. A fitting cut also knows that a layer takes more memory
// in an early partition, where more micro-batches are in flight, and it counts inputs and skips
// where they arrive. The memory of a partition is that of explain(). balance/choose/fit.h corrects
// it by plans.
//
// Needs no LibTorch.
#ifndef BALANCE_CHOOSE_FITTING_CUT_H_
#define BALANCE_CHOOSE_FITTING_CUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "balance/step/explain.h"

namespace gpipe::balance {

struct FittingCutOptions {
  // The bytes of each partition; its size is the number of partitions. If a value is negative,
  // nothing fits into that partition.
  std::vector<int64_t> limits;
  // Ranges of layers that must not be separated. Default: none.
  std::vector<LayerRange> keep_together;
  // Only chunks, checkpoint, schedule and param_scale are used.
  ExplainOptions explain;
};

// The cut whose partitions' predicted memory is at most their limits and that has
//   1. the smallest longest time of a partition: a forward and a backward of one micro-batch, and
//      a second forward if the partition recomputes;
//   2. among these the smallest sum of squared times.
// None if no cut keeps the limits.
//
//   fastest_fitting_cut(profile, {{8 * gib, 8 * gib}, {}, explain_options});
//
// Takes O(p n^2) time for n layers and p partitions, less for smaller limits: about 0.2 s for two
// thousand layers in 8 partitions.
//
// Both functions throw std::invalid_argument for no limits, for more limits than layers that may be
// separated and for keep_together out of range, and as explain() does for a profile that cannot
// have been measured.
std::optional<std::vector<int64_t>> fastest_fitting_cut(const Profile& profile,
                                                        const FittingCutOptions& options);

// The cut with the smallest largest excess, the predicted memory less the limit (negative if the
// partition fits), and then with the smallest sum of squared memories.
std::vector<int64_t> smallest_cut(const Profile& profile, const FittingCutOptions& options);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_FITTING_CUT_H_
