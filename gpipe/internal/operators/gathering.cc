#include "gpipe/internal/operators/gathering.h"

#include <atomic>
#include <utility>

namespace gpipe::internal {
namespace {

thread_local bool gathers = false;
std::atomic<bool> as_on_cpu{false};

}  // namespace

GatheringScope::GatheringScope() : former_(std::exchange(gathers, true)) {}
GatheringScope::~GatheringScope() { gathers = former_; }

bool GatheringScope::is_open() { return gathers; }

CpuGatheringScope::CpuGatheringScope() { as_on_cpu = true; }
CpuGatheringScope::~CpuGatheringScope() { as_on_cpu = false; }

bool CpuGatheringScope::is_open() { return as_on_cpu; }

}  // namespace gpipe::internal
