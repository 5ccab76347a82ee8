// GraphLog: says, once per stage, that it runs without graphs, and why.
#ifndef GPIPE_INTERNAL_GRAPHS_GRAPH_LOG_H_
#define GPIPE_INTERNAL_GRAPHS_GRAPH_LOG_H_

#include <cstdint>
#include <string>

namespace gpipe::internal {

void log_without_graphs(int64_t stage, const std::string& reason);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_GRAPH_LOG_H_
