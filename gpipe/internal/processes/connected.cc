#include "gpipe/internal/processes/connected.h"

#include <atomic>

namespace gpipe::internal {
namespace {

std::atomic<int> connections{0};
std::atomic<bool> told{false};

}  // namespace

Connected::Connected() { ++connections; }
Connected::~Connected() { --connections; }

bool first_alone_while_connected() { return connections > 0 && !told.exchange(true); }

}  // namespace gpipe::internal
