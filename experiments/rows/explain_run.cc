#include "experiments/rows/explain_run.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "command/interrupt.h"
#include "command/progress.h"
#include "diagnose/diagnose.h"
#include "diagnose/diagnosis_json.h"
#include "diagnose/diagnosis_text.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "machine/memory.h"

namespace gpipe::experiments {
namespace {

// The memory that a worker may use: its share of the CPU's available memory, or of most of a GPU's
// memory. (The rest is for workspaces of libraries, which no prediction includes.) The device with
// the least for a worker counts. 0: not known.
int64_t memory_of_worker(const std::vector<c10::Device>& devices, const Placement& placement) {
  constexpr double kOfGpu = 0.9;
  std::unordered_map<c10::Device, std::set<int64_t>> workers;
  for (size_t j = 0; j < devices.size(); ++j) {
    workers[devices[j]].insert(placement.worker_of(static_cast<int64_t>(j)));
  }
  int64_t least = 0;
  for (const auto& [device, its_workers] : workers) {
    const double bytes =
        device.is_cpu()
            ? static_cast<double>(machine::available_memory())
            : kOfGpu *
                  static_cast<double>(
                      c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
    const auto share = static_cast<int64_t>(bytes / static_cast<double>(its_workers.size()));
    if (share > 0) least = least == 0 ? share : std::min(least, share);
  }
  return least;
}

}  // namespace

Json explain_run(Trainer& trainer, const at::Tensor& input, const at::Tensor& target,
                 const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss,
                 const ScheduleGenerator& schedule, double param_scale, const std::string& title,
                 const RunContext& context) {
  const auto pipe = std::dynamic_pointer_cast<GPipeImpl>(trainer.module().shared_from_this());
  if (pipe == nullptr) {
    if (context.out != nullptr) {
      *context.out << title << ": no pipeline, so there is nothing to explain\n" << std::flush;
    }
    return nullptr;
  }
  std::optional<command::Progress> bar;
  const auto progress = [&](const std::string& what, int64_t done, int64_t all) {
    if (context.progress == nullptr) return;
    if (!bar) bar.emplace(*context.progress, title + ": why", all, context.progress_options);
    bar->update(done, what);
  };
  const LossFn of_step = [&loss](const Tensors& outputs, const Tensors& targets) {
    return loss(outputs.at(0), targets.at(0));
  };
  const auto stages = static_cast<int64_t>(pipe->devices().size());
  const int64_t micro_batches = chunk_sizes(input.size(0), pipe->chunks()).micro_batches;
  const Placement placement =
      schedule ? schedule(stages, micro_batches).placement() : pipe->placement();
  Diagnosis diagnosis;
  try {
    diagnosis = diagnose(GPipe(pipe), {input.to(trainer.input_device())},
                         {target.to(trainer.target_device())}, of_step,
                         DiagnoseOptions()
                             .step(StepOptions().schedule(schedule))
                             .memory_limit(memory_of_worker(pipe->devices(), placement))
                             .param_scale(param_scale)
                             .progress(progress)
                             .check([&] { context.check(); }));
  } catch (const command::Interrupted&) {
    return nullptr;
  }
  if (bar) bar->finish();
  if (context.out != nullptr) {
    *context.out << title << ", why it is slow\n" << to_text(diagnosis) << std::flush;
  }
  return as_json(diagnosis);
}

}  // namespace gpipe::experiments
