#include "gpipe/distributed/packets/link_rounds.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

namespace gpipe::distributed {

std::vector<std::vector<Edge>> link_rounds(std::vector<Edge> edges) {
  std::sort(edges.begin(), edges.end());
  std::vector<std::vector<Edge>> rounds;
  std::map<int64_t, std::vector<bool>> is_busy;  // by rank and round
  for (const Edge& edge : edges) {
    std::vector<bool>& from = is_busy[edge.from];
    std::vector<bool>& to = is_busy[edge.to];
    // Each of the two ranks is in at most n - 1 other edges, so one of the first 2 n - 1 rounds is
    // free for both.
    size_t round = 0;
    while ((round < from.size() && from[round]) || (round < to.size() && to[round])) ++round;
    for (std::vector<bool>* const rank : {&from, &to}) {
      rank->resize(std::max(rank->size(), round + 1));
      (*rank)[round] = true;
    }
    rounds.resize(std::max(rounds.size(), round + 1));
    rounds[round].push_back(edge);
  }
  return rounds;
}

}  // namespace gpipe::distributed
