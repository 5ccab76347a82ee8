#include "gpipe/internal/graphs/graph_log.h"

// LibTorch has macros of the same names, so none of its headers may be included here.
#include <glog/logging.h>

namespace gpipe::internal {

void log_without_graphs(int64_t stage, const std::string& reason) {
  LOG(WARNING) << "GPipe: stage " << stage << " runs without graphs: " << reason;
}

}  // namespace gpipe::internal
