// Malloc: how mimalloc, which a program with a pipeline links, treats memory that is free for a
// while.
#include <mimalloc.h>

namespace gpipe {
namespace {

// By default mimalloc returns pages to the system that have been free for 25 ms. A step takes
// longer than that, so each step would fault in again what the one before had. With 10 s a training
// loop keeps its pages, and a program that has ended its training gives them back. The environment
// (MIMALLOC_DECOMMIT_DELAY) comes first.
constexpr long kDelayMs = 10000;  // NOLINT(google-runtime-int): mimalloc's type

const bool kept = [] {
  mi_option_set_default(mi_option_decommit_delay, kDelayMs);
  mi_option_set_default(mi_option_segment_decommit_delay, kDelayMs);
  return true;
}();

}  // namespace
}  // namespace gpipe
