#include "experiments/common/explain_run.h"

#include <cstdint>
#include <memory>
#include <optional>

#include "command/progress.h"
#include "diagnose/diagnose.h"
#include "diagnose/diagnosis_text.h"
#include "gpipe/gpipe.h"

namespace gpipe::experiments {
namespace {

struct Interrupted {};

}  // namespace

Json explain_run(Trainer& trainer, const at::Tensor& input, const at::Tensor& target,
                 const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss,
                 const ScheduleGenerator& schedule, const std::string& title,
                 const RunContext& context) {
  const auto pipe = std::dynamic_pointer_cast<GPipeImpl>(trainer.module().shared_from_this());
  if (pipe == nullptr) {
    if (context.out != nullptr) {
      *context.out << title << ": no pipeline, so there is nothing to explain\n" << std::flush;
    }
    return nullptr;
  }
  std::optional<command::Progress> bar;
  const auto check = [&] {
    if (context.interrupted && context.interrupted()) throw Interrupted();
  };
  const auto progress = [&](const std::string& what, int64_t done, int64_t all) {
    if (context.progress == nullptr) return;
    if (!bar) bar.emplace(*context.progress, title + ": why", all, context.progress_options);
    bar->update(done, what);
  };
  const LossFn of_step = [&loss](const Tensors& outputs, const Tensors& targets) {
    return loss(outputs.at(0), targets.at(0));
  };
  Diagnosis diagnosis;
  try {
    diagnosis = diagnose(
        GPipe(pipe), {input.to(trainer.input_device())}, {target.to(trainer.target_device())},
        of_step,
        DiagnoseOptions().step(StepOptions().schedule(schedule)).progress(progress).check(check));
  } catch (const Interrupted&) {
    return nullptr;
  }
  if (bar) bar->finish();
  if (context.out != nullptr) {
    *context.out << title << ", why it is slow\n" << to_text(diagnosis) << std::flush;
  }
  return Json::parse(to_json(diagnosis));
}

}  // namespace gpipe::experiments
