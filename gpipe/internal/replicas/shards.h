// Shards: which replica adds up, and updates, which parameters.
#ifndef GPIPE_INTERNAL_REPLICAS_SHARDS_H_
#define GPIPE_INTERNAL_REPLICAS_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::internal {

// Returns, by parameter, the replica that owns it, so that all replicas own about as many bytes.
// The largest parameter is given out first. Each parameter goes to the first replica among the
// replicas that own least so far. `bytes`: [parameter].
std::vector<int64_t> owners_of(const std::vector<int64_t>& bytes, int64_t replicas);

// The owner of parameters that no replica gives to others.
inline constexpr int64_t kNobody = -1;

// The parameters of one message between replicas.
using Bucket = std::vector<size_t>;

// The parameters of `owner`, in their order, in as few buckets of at most `most` bytes as that
// order allows. A parameter larger than `most` is alone in its bucket.
std::vector<Bucket> buckets_of(int64_t owner, const std::vector<int64_t>& owners,
                               const std::vector<int64_t>& bytes, int64_t most);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_SHARDS_H_
