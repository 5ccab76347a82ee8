// Shards: which replica adds up, and updates, which parameters.
#ifndef GPIPE_INTERNAL_REPLICAS_SHARDS_H_
#define GPIPE_INTERNAL_REPLICAS_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::internal {

// [parameter] its replica, so that all have about as many bytes: the largest parameter goes first,
// to the replica that has least, the first of these. `bytes`: [parameter].
std::vector<int64_t> owners_of(const std::vector<int64_t>& bytes, int64_t replicas);

// The owner of what no replica gives to others.
inline constexpr int64_t kNobody = -1;

// The parameters of one message between replicas.
using Bucket = std::vector<size_t>;

// The parameters of `owner`, in their order, in as few messages as `most` bytes in each allow; one
// that is larger goes alone.
std::vector<Bucket> buckets_of(int64_t owner, const std::vector<int64_t>& owners,
                               const std::vector<int64_t>& bytes, int64_t most);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_SHARDS_H_
