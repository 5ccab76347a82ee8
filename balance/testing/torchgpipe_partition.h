// torchgpipe_partition: the cut of torchgpipe's own partitioner, to compare it with partition()'s.
#ifndef BALANCE_TESTING_TORCHGPIPE_PARTITION_H_
#define BALANCE_TESTING_TORCHGPIPE_PARTITION_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe::testing {

struct TorchgpipesAnswer {
  std::vector<std::pair<int64_t, int64_t>> blocks;  // begin, end
  bool ends = true;

  bool has_an_empty_block() const {
    return std::any_of(blocks.begin(), blocks.end(),
                       [](const auto& block) { return block.first >= block.second; });
  }

  bool has_a_layer_twice_or_never(int64_t layers) const {
    int64_t sum = 0;
    for (const auto& [begin, end] : blocks) sum += std::max<int64_t>(end - begin, 0);
    return sum != layers;
  }
};

// torchgpipe's algorithm as it is implemented: borders move one layer at a time from the heaviest
// block towards the lightest, with costs scaled to [0, 1].
inline TorchgpipesAnswer torchgpipe_partition(const std::vector<double>& costs,
                                              int64_t partitions) {
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
  std::vector<double> scaled;
  for (double cost : costs) {
    scaled.push_back(*most > *least ? (cost - *least) / (*most - *least) : 0.0);
  }
  const auto layers = static_cast<int64_t>(costs.size());
  std::vector<int64_t> ends;
  for (int64_t j = 1; j <= partitions; ++j) ends.push_back(layers / partitions * j);
  ends.back() = layers;

  TorchgpipesAnswer answer;
  const auto begin = [&](int64_t j) { return j > 0 ? ends[j - 1] : 0; };
  const auto weight = [&](int64_t j) {
    double sum = 0.0;
    // Borders may leave the list; as in Python, the list is empty there.
    for (int64_t i = begin(j); i < std::min(ends[j], layers); ++i) sum += scaled[i];
    return sum;
  };
  const auto finish = [&] {
    for (int64_t j = 0; j < partitions; ++j) {
      answer.blocks.emplace_back(begin(j), std::min(ends[j], layers));
    }
    return answer;
  };
  for (int round = 0; round < 10000;) {
    int64_t p = 0;  // the last of the heaviest blocks
    for (int64_t j = 0; j < partitions; ++j) p = weight(j) >= weight(p) ? j : p;
    for (bool keep_p = true; keep_p && round < 10000; ++round) {
      int64_t q = 0;  // the first of the lightest blocks
      for (int64_t j = 0; j < partitions; ++j) q = weight(j) < weight(q) ? j : q;
      if (weight(p) <= weight(q) + 1) return finish();
      if (p < q) {
        --ends[q - 1];
        keep_p = p != q - 1;
      } else {
        ++ends[q];
        keep_p = p != q + 1;
      }
    }
  }
  answer.ends = false;
  return finish();
}

}  // namespace gpipe::testing

#endif  // BALANCE_TESTING_TORCHGPIPE_PARTITION_H_
