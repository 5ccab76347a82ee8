#include "gpipe/runtime/warning_log.h"

// LibTorch has macros of the same names as glog, so none of its headers may be included here.
#include <glog/logging.h>

namespace gpipe::internal {

void log_warning(const std::string& text) {
  if (!text.empty()) LOG(WARNING) << "GPipe: " << text;
}

}  // namespace gpipe::internal
