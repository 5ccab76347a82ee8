// fitting_cut: which layers go into which partition if each partition has so much memory and no
// more, as far as a profile can tell.
//
// Unlike partition(), which knows one size of each layer, it knows that a layer takes more memory
// in an early partition, where more micro-batches are in flight, and counts inputs and skips where
// they arrive. The memory of a partition is that of explain(); balance/choose/fit.h corrects it by
// plans.
//
// It knows no LibTorch.
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
  // Bytes of each partition, whose number is that of partitions. May be negative: then nothing fits
  // in it.
  std::vector<int64_t> limits;
  // Layers of which no two neighbors may be separated. Default: none.
  std::vector<LayerRange> keep_together;
  // chunks, checkpoint, schedule and param_scale count; the others are for explain().
  ExplainOptions explain;
};

// The cut of which each partition's predicted memory is at most its limit, with
//   1. the least longest time: that of a forward, a backward and, where it recomputes, a forward
//      again of one micro-batch;
//   2. then the least sum of squared times.
// None if no cut keeps the limits.
//
//   fastest_fitting_cut(profile, {{8 * gib, 8 * gib}, {}, explain_options});
//
// Takes O(p n^2) time for n layers and p partitions, less the smaller the limits are: two thousand
// layers into 8 some 0.2 s.
//
// Both throw std::invalid_argument for limits of no partition or of more than there are layers that
// may be separated, for layers to keep together that are out of range, and as explain() does for a
// profile that cannot have been measured.
std::optional<std::vector<int64_t>> fastest_fitting_cut(const Profile& profile,
                                                        const FittingCutOptions& options);

// The cut whose partitions exceed their limits least, or stay below them most: the least largest
// difference, then the least sum of squared memories.
std::vector<int64_t> smallest_cut(const Profile& profile, const FittingCutOptions& options);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_FITTING_CUT_H_
