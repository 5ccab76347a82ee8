#include "experiments/rows/row.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/frame/balance.h"

namespace gpipe::experiments {

void Row::cut_as_published(const std::vector<int64_t>& balance, int64_t chunks, Checkpoint mode) {
  setup = choose_setup(CommonFlags(), balance, chunks, mode, published_schedule());
}

void Row::cut(const CommonFlags& flags, const std::vector<int64_t>& balance, int64_t chunks,
              Checkpoint mode, const ScheduleChoice& schedule) {
  chunks = choose_chunks(flags, chunks, batch_size);
  setup = choose_setup(
      flags, choose_balance(flags.balance, balance, network.title, layers_of(network.model)),
      chunks, mode, schedule);
}

void Row::run_here(const CommonFlags& flags) {
  devices =
      choose_devices(flags, name, std::max<int64_t>(static_cast<int64_t>(setup.balance.size()), 1));
  seed = flags.seed;
}

Ablation Row::whole_ablation() const {
  Ablation whole = ablation;
  whole.direct_skips = ablation.direct_skips && setup.direct_skips;
  return whole;
}

std::string Row::describe() const {
  return absl::StrFormat("%s, %d x %s", network.title, batch_size,
                         absl::StrJoin(network.model.row, " x ")) +
         (is_pipeline() ? ", " + to_text(setup) : "");
}

Json Row::settings() const {
  return {{"network", network.title},
          {"batch_size", batch_size},
          {"image_size", network.model.row.back()}};
}

LossFn Row::loss() const {
  return [kind = network.model.loss](const Tensors& outputs, const Tensors& targets) {
    return models::loss_of(kind, outputs.at(0), targets.at(0));
  };
}

at::Tensor Row::input(int64_t rows, c10::Device device) const {
  return models::random_input(network.model, rows, device);
}

at::Tensor Row::target(int64_t rows, c10::Device device) const {
  return make_target(network.model, rows, device);
}

GPipeOptions Row::options() const {
  return pipe_options(setup, devices)
      .placement(placement)
      .ablation(whole_ablation())
      .graphs(graphs);
}

std::unique_ptr<Trainer> Row::make_trainer() const {
  if (is_pipeline()) return make_pipeline_trainer(task(), options(), setup.schedule.make);
  return make_naive_trainer(task(), devices.front());
}

ScheduleChoice published_schedule() { return {"gpipe", Schedule::gpipe}; }

}  // namespace gpipe::experiments
