// check_size: the limits of the numbers that networks are made of.
#ifndef MODELS_CHECK_SIZE_H_
#define MODELS_CHECK_SIZE_H_

#include <c10/util/Exception.h>

#include <bit>
#include <cstdint>

namespace gpipe::models::internal {

// Throws c10::ValueError unless `value` is from `least` to `most`. The upper limits turn a typing
// error into a message instead of exhausted memory. Large ones are powers of two, shown as "2^20".
inline void check_size(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  const bool power = most >= int64_t{1} << 20 && std::has_single_bit(static_cast<uint64_t>(most));
  TORCH_CHECK_VALUE(false, name, " must be from ", least, " to ", power ? "2^" : "",
                    power ? std::countr_zero(static_cast<uint64_t>(most)) : most, ", got ", value);
}

}  // namespace gpipe::models::internal

#endif  // MODELS_CHECK_SIZE_H_
