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
  double least_speed_up = 1.02;           // advice that gains less is left out
  std::function<void()> check;            // called before each setup is tried; may throw
};

// The best change of each kind alone, and the best of several changes together if that is better
// than each alone, sorted by gain. `step` is the measured step of `setup`. A prediction is the step
// that the model gives, corrected by the factor between the measured and the modeled step of
// `setup`.
//
// A schedule is not tried with a number of micro-batches for which it throws std::invalid_argument
// or returns a schedule of another number. Nothing that exceeds the memory limit is advised.
//
// Throws std::invalid_argument as model_step() does, for `setup`.
std::vector<Advice> find_advice(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                                const Machine& machine, double step, const AdviceOptions& options);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_ADVICE_H_
