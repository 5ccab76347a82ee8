// A recompute must give what its forward gave: the fingerprints of both, and how they are compared.
#ifndef GPIPE_INTERNAL_CELL_RECOMPUTE_CHECK_H_
#define GPIPE_INTERNAL_CELL_RECOMPUTE_CHECK_H_

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/cell/fingerprint.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/tensors/value.h"

namespace gpipe::internal {

// The fingerprints of the outputs that require a gradient, in their order.
std::vector<Fingerprint> fingerprints_of(const c10::SmallVector<Value, 1>& outputs);

// Whether the recompute has given the values of the forward, as far as it is known at once. What
// only a device knows goes to run.late_checks.
bool is_same_recompute(const RunContext& run, int64_t stage, const std::vector<Fingerprint>& now,
                       const std::vector<Fingerprint>& in_forward);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_RECOMPUTE_CHECK_H_
