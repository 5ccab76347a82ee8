// add_pipeline_flags, check_pipeline, make_pipeline: make a pipeline as flags ask for it, over
// processes and replicas.
//
// The flags are --schedule, --chunks, --replicas, --groups, --zero, --checkpoint, --threads and
// --devices. The program itself decides where the model is cut.
#ifndef COMMON_PIPELINE_FLAGS_H_
#define COMMON_PIPELINE_FLAGS_H_

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "command/flags.h"
#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/world.h"

namespace examples {

struct PipelineSettings {
  gpipe::ScheduleChoice schedule;
  int64_t chunks = 4, threads = 0;
  int64_t replicas = 1;
  std::optional<int64_t> groups_given;  // --groups
  int64_t groups = 0;                   // GPipeOptions'
  bool zero = false;
  gpipe::Checkpoint checkpoint = gpipe::Checkpoint::kNever;
  std::vector<c10::Device> devices;
};

// Adds the flags, whose defaults are the values of `settings`.
void add_pipeline_flags(PipelineSettings& settings, gpipe::command::FlagSet& flags);

// To be called when the flags are read. `batch`: the rows of a mini-batch, the program's --batch.
// Throws std::invalid_argument, with the flag and its value, for flags that do not go together.
void check_pipeline(PipelineSettings& settings, int64_t batch);

// The flags on which a run's bits depend (examples/common/bits.h). `threads`: the threads of each
// stage on the CPU; 0 if no stage is there.
nlohmann::ordered_json pipeline_bits(const PipelineSettings& settings, int64_t threads);

gpipe::GPipe make_pipeline(const PipelineSettings& settings, const torch::nn::Sequential& model,
                           const std::vector<int64_t>& balance, const gpipe::World& world);

// A sentence for each flag that does nothing here: --zero without replicas, and --threads if the
// stages are not on the CPU. Such a flag is not a mistake, since a layout may be one of several
// that share a command. `device`: the device of a stage.
std::vector<std::string> idle_flags(const PipelineSettings& settings, const c10::Device& device);

// Whether a schedule adds up gradients in the order of the micro-batches.
bool adds_in_order(const gpipe::ScheduleGenerator& schedule);

// The GPipeOptions::devices of this process. Over several processes "cuda" alone means the device
// with the number that the process has on its machine. `count`: the devices of this machine. Throws
// std::invalid_argument if there are too few.
std::vector<c10::Device> own_devices(const std::vector<c10::Device>& devices,
                                     const gpipe::World& world, int64_t count);

}  // namespace examples

#endif  // COMMON_PIPELINE_FLAGS_H_
