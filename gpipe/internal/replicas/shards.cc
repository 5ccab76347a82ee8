#include "gpipe/internal/replicas/shards.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace gpipe::internal {

std::vector<int64_t> owners_of(const std::vector<int64_t>& bytes, int64_t replicas) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int64_t> load(static_cast<size_t>(replicas), 0);
  std::vector<int64_t> owners(bytes.size(), 0);
  for (const size_t parameter : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[parameter] = least - load.begin();
    *least += bytes[parameter];
  }
  return owners;
}

std::vector<Bucket> buckets_of(int64_t owner, const std::vector<int64_t>& owners,
                               const std::vector<int64_t>& bytes, int64_t most) {
  std::vector<Bucket> buckets;
  int64_t size = 0;  // bytes in the last bucket
  for (size_t parameter = 0; parameter < owners.size(); ++parameter) {
    if (owners[parameter] != owner) continue;
    if (buckets.empty() || size + bytes[parameter] > most) {
      buckets.emplace_back();
      size = 0;
    }
    buckets.back().push_back(parameter);
    size += bytes[parameter];
  }
  return buckets;
}

}  // namespace gpipe::internal
