// Row: a row of a table, as it is measured, planned or simulated.
#ifndef GPIPE_EXPERIMENTS_ROWS_ROW_H_
#define GPIPE_EXPERIMENTS_ROWS_ROW_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/frame/flags.h"
#include "experiments/frame/report.h"
#include "experiments/frame/trainer.h"
#include "gpipe/ablation.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/placement.h"
#include "models/by_name.h"

namespace gpipe::experiments {

struct Network {
  std::string title;  // for people: "ResNet-101"
  // At full scale, its name is the one that profiles of it have (//balance --model).
  models::NamedModel model;
};

// Makes targets for `rows` samples.
using MakeTarget =
    std::function<at::Tensor(const models::NamedModel& model, int64_t rows, c10::Device device)>;

// What is trained, how it is cut, and on what it runs. A value type.
struct Row {
  std::string name;
  Network network;
  int64_t batch_size = 0;
  MakeTarget make_target = models::random_target;
  PipelineSetup setup;               // without a balance: no pipeline
  std::vector<c10::Device> devices;  // of a measured row: one for each partition
  uint64_t seed = 0;
  // Options of the pipeline that its setup does not have.
  std::optional<Placement> placement;
  Ablation ablation;
  bool graphs = false;

  bool is_pipeline() const { return !setup.balance.empty(); }

  // The published pipeline, with torchgpipe's schedule. An empty balance is that of no pipeline.
  void cut_as_published(const std::vector<int64_t>& balance, int64_t chunks, Checkpoint mode);

  // Cuts the network and mini-batch that the row has now: in proportion to the published balance,
  // into the published number of micro-batches or as many as there are samples, unless the flags
  // say otherwise. `mode` and `schedule` stand in for flags that were not given. Throws
  // std::invalid_argument for flags that do not fit.
  void cut(const CommonFlags& flags, const std::vector<int64_t>& balance, int64_t chunks,
           Checkpoint mode, const ScheduleChoice& schedule);

  // Chooses a device for each partition, and takes the seed. Throws what choose_devices() throws.
  void run_here(const CommonFlags& flags);

  // All that the pipeline leaves out: `ablation`, and direct skips if the setup has none.
  Ablation whole_ablation() const;

  // The row in words: "U-Net (5, 64), 80 x 3 x 192 x 192, chunks 2, balance [241], checkpoint
  // except_last, gpipe".
  std::string describe() const;
  // The settings that every row has. Those of a pipeline are add_pipeline()'s.
  Json settings() const;

  Task task() const { return task_of(network.model, seed); }
  LossFn loss() const;
  at::Tensor input(int64_t rows, c10::Device device) const;
  at::Tensor target(int64_t rows, c10::Device device) const;

  // Requirements: the devices are chosen.
  GPipeOptions options() const;
  std::unique_ptr<Trainer> make_trainer() const;
};

// The schedule of torchgpipe, and so of the published runs.
ScheduleChoice published_schedule();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_ROW_H_
