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

std::vector<std::vector<int64_t>> cuts_beside(const std::vector<int64_t>& balance,
                                              const std::vector<int64_t>& pieces,
                                              size_t partition) {
  std::vector<std::vector<int64_t>> result;
  const auto move = [&](size_t from, size_t to, int64_t layers) {
    if (balance[from] == layers) return;
    result.push_back(balance);
    result.back()[from] -= layers;
    result.back()[to] += layers;
  };
  int64_t begin = 0;
  size_t j = 0;               // the partition of the piece
  int64_t past = balance[0];  // where that partition ends
  int64_t first = 0;          // where that partition begins
  for (const int64_t piece : pieces) {
    if (begin == past) {
      first = past;
      past += balance[++j];
    }
    const int64_t end = begin + piece;
    const auto is_end = [&](size_t a, size_t b) { return a == partition || b == partition; };
    if (begin == first && j > 0 && is_end(j, j - 1)) move(j, j - 1, piece);
    if (end == past && j + 1 < balance.size() && is_end(j, j + 1)) move(j, j + 1, piece);
    begin = end;
  }
  return result;
}

int64_t first_distance(int64_t layers, int64_t partitions) {
  int64_t distance = 1;
  while (distance < 16 && distance * 8 < layers / partitions) distance *= 2;
  return distance;
}

}  // namespace gpipe::balance
