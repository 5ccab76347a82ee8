// find_advice: what to change about a setup, and what each change is predicted to gain.
#ifndef DIAGNOSE_ADVICE_H_
#define DIAGNOSE_ADVICE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "diagnose/costs.h"
#include "diagnose/diagnosis.h"
#include "diagnose/step_model.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::diagnosis {

struct AdviceOptions {
  std::vector<int64_t> chunks;            // to choose from
  std::vector<ScheduleChoice> schedules;  // to choose from
  int64_t memory_limit = 0;               // bytes of each worker; 0: none
  double param_scale = 2;                 // see balance::ExplainOptions
  double least_speed_up = 1.02;           // what gains less is left out
  std::function<void()> check;            // called before each setup is tried; may throw
};

// The best of each kind of change alone, and the best of several together if that is better than
// each alone, by gain. `step` is the measured step of `setup`: a prediction is the step that the
// model gives, times what the model was wrong by for the setup as it is.
//
// A schedule that throws std::invalid_argument for a number of micro-batches, or is for another
// one, is not tried with it. Nothing that exceeds the memory limit is advised.
//
// Throws std::invalid_argument as model_step() does, for `setup`.
std::vector<Advice> find_advice(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                                const Machine& machine, double step, const AdviceOptions& options);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_ADVICE_H_
