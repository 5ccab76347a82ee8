// cuts: the exact search behind partition(), on whole numbers.
//
// Internal to //balance; docs/design/balance.md has the proofs.
#ifndef BALANCE_CUT_CUTS_H_
#define BALANCE_CUT_CUTS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace gpipe::balance::internal {

// Where a list of layers may be cut into blocks, and what a block weighs. The places are numbered:
// 0 is before the first layer, the last one behind the last. Block j between places b < e has
//
//   weight  cost[e] - cost[b]
//   time    slowness[j] * weight + transfer_slowness * (receive[b] + send[e])
//   size    size[e] - size[b], at most size_limit[j]
//
// All numbers are at least 0 and `slowness` at least 1. No slowness is above 2^62, and all weights
// and transfers of any cut sum to less than 2^62.
struct CutProblem {
  // By place.
  std::vector<int64_t> layers;  // how many lie before it
  std::vector<int64_t> cost;    // of all layers before it
  std::vector<int64_t> size;    // of all layers before it
  // Of a cut there, for the block before it and for the one behind it: 0 at both ends, where there
  // is no cut. Both are empty if all is 0.
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
  // By block. There are no more blocks than lie between the places.
  std::vector<int64_t> slowness;
  std::vector<int64_t> size_limit;
  int64_t transfer_slowness = 1;
};

// The places at which the blocks end, for the cut with
//   1. the least longest time,
//   2. then the least sum of weight x time,
//   3. then the least sum of squares of layers,
//   4. then the fewest layers in the first block, in the second, and so on.
// Nothing if no cut keeps the size limits.
std::optional<std::vector<int64_t>> best_cuts(const CutProblem& problem);

// Where best_cuts() gives nothing: the least number that makes some cut possible when it is added
// to each size limit.
int64_t missing_size(const CutProblem& problem);

}  // namespace gpipe::balance::internal

#endif  // BALANCE_CUT_CUTS_H_
