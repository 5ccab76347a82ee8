// simulate_ablation: how fast the published U-Net would run under an ablation, by simulation.
#ifndef GPIPE_EXPERIMENTS_UNET_TIMELINE_SIMULATED_H_
#define GPIPE_EXPERIMENTS_UNET_TIMELINE_SIMULATED_H_

#include <cstdint>
#include <vector>

#include "balance/costs/profile.h"
#include "experiments/rows/simulated_speed.h"
#include "experiments/unet_timeline/published.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/step_timeline.h"

namespace gpipe::experiments {

struct AblationSettings {
  PipelineSetup setup;
  balance::Machine machine = SimulatedMachine();
};

struct SimulatedStep {
  StepTimeline timeline;
  Routes routes;
};

// Simulates a step whose micro-batches cost what `profile` says, by balance::StepModel.
//
// Without copy streams a copy to another worker is part of both the action before the copy and the
// action after it. Early recomputes are part of the last partition's first backward. The optimizer
// is left out.
//
// Throws std::invalid_argument for a balance that does not fit the profile, and what simulate()
// throws.
SimulatedStep simulate_ablation(const AblationVariant& variant, const balance::Profile& profile,
                                const AblationSettings& settings);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_UNET_TIMELINE_SIMULATED_H_
