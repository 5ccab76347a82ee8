// counted: a number with its noun, in singular or plural.
#ifndef GPIPE_TEXT_COUNTED_H_
#define GPIPE_TEXT_COUNTED_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace gpipe::text {

// A text like "1 layer", "3 layers", "0 layers". Give `plural` if it is not the singular with an s:
// "2 batches".
std::string counted(int64_t count, std::string_view singular, std::string_view plural = "");

}  // namespace gpipe::text

#endif  // GPIPE_TEXT_COUNTED_H_
