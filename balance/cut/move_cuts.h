// move_cuts: a search among the cuts next to a cut, and next to each better one.
//
// It knows nothing of what makes a cut better, and no LibTorch. Internal to //balance and
// //diagnose.
#ifndef BALANCE_CUT_MOVE_CUTS_H_
#define BALANCE_CUT_MOVE_CUTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "balance/cut/pieces.h"

namespace gpipe::balance {

struct CutMoves {
  // By how many layers a cut is moved at first; by half as many where no move was better, down to
  // one.
  int64_t distance = 1;
  // Whether a cut is also moved together with the one behind it: then a partition moves as a whole.
  bool partitions = true;
  // Whether the balance, which the pieces allow, is better than the best so far. If so, the search
  // goes on from there.
  std::function<bool(const std::vector<int64_t>& balance)> is_better;
  // Asked before each cut is moved; false ends the search.
  std::function<bool()> goes_on;
  // Called before the moves of each distance, to change something else than cuts; whether something
  // became better. Empty: nothing else may change.
  std::function<bool()> change_others = nullptr;
};

// The best balance that was found, `balance` if none was better.
std::vector<int64_t> move_cuts(std::vector<int64_t> balance, const Pieces& pieces,
                               const CutMoves& moves);

// A first distance for `layers` layers in `partitions`: an eighth of a partition or a little more,
// and 16 at most.
int64_t first_distance(int64_t layers, int64_t partitions);

}  // namespace gpipe::balance

#endif  // BALANCE_CUT_MOVE_CUTS_H_
