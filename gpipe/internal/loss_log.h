// LossLog: says what may be behind a loss that is NaN.
#ifndef GPIPE_INTERNAL_LOSS_LOG_H_
#define GPIPE_INTERNAL_LOSS_LOG_H_

#include <string>

namespace gpipe::internal {

void log_nan_loss(const std::string& text);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_LOSS_LOG_H_
