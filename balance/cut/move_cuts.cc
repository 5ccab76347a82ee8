#include "balance/cut/move_cuts.h"

#include <cstddef>
#include <utility>

namespace gpipe::balance {

std::vector<int64_t> move_cuts(std::vector<int64_t> balance, const Pieces& pieces,
                               const CutMoves& moves) {
  for (int64_t distance = moves.distance; distance >= 1 && moves.goes_on();) {
    bool better = moves.change_others && moves.change_others();
    for (size_t cut = 0; cut + 1 < balance.size() && moves.goes_on(); ++cut) {
      const size_t last = moves.partitions && cut + 2 < balance.size() ? cut + 2 : cut + 1;
      for (const int64_t layers : {distance, -distance}) {
        for (size_t end = cut + 1; end <= last; ++end) {
          std::vector<int64_t> moved = balance;
          moved[cut] += layers;
          moved[end] -= layers;
          if (!pieces.allow(moved) || !moves.is_better(moved)) continue;
          balance = std::move(moved);
          better = true;
        }
      }
    }
    if (!better) distance /= 2;
  }
  return balance;
}

int64_t first_distance(int64_t layers, int64_t partitions) {
  int64_t distance = 1;
  while (distance < 16 && distance * 8 < layers / partitions) distance *= 2;
  return distance;
}

}  // namespace gpipe::balance
