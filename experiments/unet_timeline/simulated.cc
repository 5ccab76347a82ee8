#include "experiments/unet_timeline/simulated.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "balance/step/cut_costs.h"
#include "balance/step/recomputed_cells.h"
#include "balance/step/step_model.h"
#include "gpipe/schedule/action.h"

namespace gpipe::experiments {
SimulatedStep simulate_ablation(const AblationVariant& variant, const balance::Profile& profile,
                                const AblationSettings& settings) {
  balance::CutCosts costs =
      balance::cut_costs(profile, settings.setup.balance, variant.ablation.direct_skips);
  const Schedule schedule = settings.setup.schedule_for(settings.setup.chunks);
  balance::StepModel model{schedule,
                           balance::recomputed_cells(schedule, settings.setup.checkpoints),
                           {std::move(costs)}};
  model.micro_batches.resize(static_cast<std::size_t>(settings.setup.chunks));
  model.machine = settings.machine;
  model.copy_streams = variant.ablation.copy_streams;
  model.early_recomputes = variant.ablation.early_recomputes;
  return {to_timeline(model.simulate(), 1.0,
                      [&](const Action& action) { return model.recompute_seconds(action); }),
          model.costs.front().routes};
}

}  // namespace gpipe::experiments
