#include "gpipe/internal/operators/gathering.h"

#include <utility>

namespace gpipe::internal {
namespace {

thread_local bool gathers = false;

}  // namespace

GatheringScope::GatheringScope() : former_(std::exchange(gathers, true)) {}
GatheringScope::~GatheringScope() { gathers = former_; }

bool GatheringScope::is_open() { return gathers; }

}  // namespace gpipe::internal
