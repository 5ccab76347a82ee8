#include "gpipe/internal/loss_log.h"

// LibTorch has macros of the same names, so none of its headers may be included here.
#include <glog/logging.h>

namespace gpipe::internal {

void log_nan_loss(const std::string& text) { LOG(WARNING) << "GPipe: " << text; }

}  // namespace gpipe::internal
