// break_down: the parts by which a measured step is longer than the ideal.
#ifndef DIAGNOSE_BREAKDOWN_H_
#define DIAGNOSE_BREAKDOWN_H_

#include <cstdint>
#include <vector>

#include "diagnose/costs.h"
#include "diagnose/diagnosis.h"
#include "diagnose/step_model.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::diagnosis {

// `seconds` as a multiple of 2^-40, so that sums and differences of a few such numbers are exact.
double on_grid(double seconds);

// For each cause, in the order of Cause: by how much the modeled step gets longer when this cause
// is counted in addition to the ones before. kSmallMicroBatches begins at `ideal`, and kOverhead is
// the rest up to the measured `step`, so the parts sum up to step - ideal. The sum is exact if both
// are on the grid (on_grid).
//
// Throws as model_step() does.
std::vector<Part> break_down(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                             const Machine& machine, double ideal, double step);

// How many times as long an action takes beside others on a machine with `machine.cores`, chosen
// such that the workers of the modeled step are busy for `busy` seconds together; at least 1.
double fit_contention(const Costs& costs, int64_t rows, const PipelineSetup& setup, Machine machine,
                      double busy);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_BREAKDOWN_H_
