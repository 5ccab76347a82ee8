// move_cuts: a local search that starts from a cut and moves to better neighboring cuts.
//
// The caller decides what makes a cut better. Needs no LibTorch. Internal to //balance and
// //diagnose.
#ifndef BALANCE_CUT_MOVE_CUTS_H_
#define BALANCE_CUT_MOVE_CUTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "balance/cut/pieces.h"

namespace gpipe::balance {

struct CutMoves {
  // The number of layers by which a cut is moved at first. It is halved, down to one, whenever no
  // move was better.
  int64_t distance = 1;
  // Whether a cut is also moved together with the next one, which moves a partition as a whole.
  bool partitions = true;
  // Whether a balance, which the pieces allow, is better than the best so far. If so, the search
  // continues from it.
  std::function<bool(const std::vector<int64_t>& balance)> is_better;
  // Called before each cut is moved; false ends the search.
  std::function<bool()> goes_on;
  // Called before the moves of each distance. May change something other than cuts, and returns
  // whether that was an improvement. Null: nothing else changes.
  std::function<bool()> change_others = nullptr;
};

// Returns the best balance that was found; `balance` itself if none was better.
std::vector<int64_t> move_cuts(std::vector<int64_t> balance, const Pieces& pieces,
                               const CutMoves& moves);

// Returns the balances in which one end of `partition` is moved by a piece, outwards or inwards.
// `pieces` are the numbers of layers of all pieces. A partition that would lose its last layer
// keeps its end.
std::vector<std::vector<int64_t>> cuts_beside(const std::vector<int64_t>& balance,
                                              const std::vector<int64_t>& pieces, size_t partition);

// Returns a first distance for `layers` layers in `partitions` partitions: about an eighth of a
// partition, at most 16.
int64_t first_distance(int64_t layers, int64_t partitions);

}  // namespace gpipe::balance

#endif  // BALANCE_CUT_MOVE_CUTS_H_
