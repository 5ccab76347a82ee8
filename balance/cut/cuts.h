// cuts: the exact search behind partition(), on whole numbers.
//
// Internal to //balance; docs/design/balance.md has the proofs.
#ifndef BALANCE_CUT_CUTS_H_
#define BALANCE_CUT_CUTS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace gpipe::balance::internal {

// Where a list of layers may be cut into blocks, and the weight of a block. Places are numbered
// from 0, before the first layer, to the last one, behind the last layer. Block j between the
// places b < e has
//
//   weight  cost[e] - cost[b]
//   time    slowness[j] * weight + transfer_slowness * (receive[b] + send[e])
//   size    size[e] - size[b], at most size_limit[j]
//
// All numbers are at least 0 and `slowness` at least 1. No slowness is above 2^62, and all weights
// and transfers of any cut sum to less than 2^62.
struct CutProblem {
  // Indexed by place.
  std::vector<int64_t> layers;  // layers before the place
  std::vector<int64_t> cost;    // cost of all layers before the place
  std::vector<int64_t> size;    // size of all layers before the place
  // Costs of a cut at the place: `send` for the block before it, `receive` for the one behind it. 0
  // at both ends, where there is no cut. Both are empty if all costs are 0.
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
  // Indexed by block. There are at most as many blocks as intervals between neighboring places.
  std::vector<int64_t> slowness;
  std::vector<int64_t> size_limit;
  int64_t transfer_slowness = 1;
};

// Returns the places at which the blocks end, for the cut with
//   1. the smallest longest time,
//   2. then the smallest sum of weight x time,
//   3. then the smallest sum of squared numbers of layers,
//   4. then the fewest layers in the first block, in the second, and so on.
// None if no cut keeps the size limits.
std::optional<std::vector<int64_t>> best_cuts(const CutProblem& problem);

// If best_cuts() returns none: the smallest number that makes some cut possible when it is added to
// each size limit.
int64_t missing_size(const CutProblem& problem);

}  // namespace gpipe::balance::internal

#endif  // BALANCE_CUT_CUTS_H_
