// CommonFlags: the flags that every experiment has, and their values.
#ifndef GPIPE_EXPERIMENTS_FRAME_FLAGS_H_
#define GPIPE_EXPERIMENTS_FRAME_FLAGS_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/frame/report.h"
#include "experiments/frame/scale.h"
#include "gpipe/checkpoint.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::experiments {

// A value that was not given is nullopt or empty: then the scale or the variant decides.
struct CommonFlags {
  std::string experiment;
  Scale scale = Scale::kSmoke;
  std::vector<c10::Device> devices;  // empty: none was given, and this machine has no CUDA device
  bool devices_given = false;
  std::optional<int64_t> epochs;
  int64_t skip_epochs = 1;
  std::optional<int64_t> batch_size;
  std::optional<int64_t> chunks;
  std::vector<int64_t> balance;
  std::optional<Checkpoint> checkpoint;
  std::optional<ScheduleChoice> schedule;
  uint64_t seed = 0;
  std::string ways;      // names of ways to obtain figures; empty: all
  std::string json;      // an absolute path; so is `trace`
  std::string trace;     // where the timeline goes; empty: nowhere
  bool explain = false;  // whether to say where the time goes
  // The first of the experiment's own flags that was given and that only measured rows, or only
  // simulated ones, have. The experiment sets them.
  std::string for_measured;
  std::string for_simulated;

  // The first flag that was given and changes what a measured row runs: "--chunks". Rows at full
  // size run as published. Empty: none was.
  std::string changes_what_runs() const;
  // Whether a flag was given that only pipelines have.
  bool for_pipelines() const { return chunks || !balance.empty(); }
};

// Throws std::invalid_argument or c10::ValueError, with flag and value, for meaningless values, and
// for a --json or a --trace that cannot be written.
CommonFlags read_common_flags();

// The first of these flags whose value is not its default: "--samples". Empty: none.
std::string first_given(const std::vector<std::string>& names);

// The devices of a variant that needs `needed`: the first of --devices, or of the CUDA devices; the
// CPU as often as needed if there are none. With `any_number`, all devices that were given by hand,
// however many. Throws std::invalid_argument if they are too few.
std::vector<c10::Device> choose_devices(const CommonFlags& flags, const std::string& variant,
                                        int64_t needed, bool any_number = false);

// The number of micro-batches: --chunks, or `published` limited to what a mini-batch of
// `batch_size` samples can be cut into. Throws std::invalid_argument if --chunks is more than that.
int64_t choose_chunks(const CommonFlags& flags, int64_t published, int64_t batch_size);

// The devices as text, like "2 x cpu" or "1 x cuda".
std::string count_devices(const std::vector<c10::Device>& devices);

// The setup of a row's pipeline: `balance`, `chunks`, and the checkpoint mode and the schedule of
// the flags. `otherwise` and `otherwise_schedule` stand in for flags that were not given.
PipelineSetup choose_setup(const CommonFlags& flags, std::vector<int64_t> balance, int64_t chunks,
                           Checkpoint otherwise = Checkpoint::kExceptLast,
                           const ScheduleChoice& otherwise_schedule = PipelineSetup().schedule);

// Adds a pipeline to an outcome's settings.
void add_pipeline(const PipelineSetup& setup, Json& settings);

// Adds the settings of any measured row: scale, devices, seed, and "changed", the first flag, if
// any, because of which the row is not as published.
void add_common(const CommonFlags& flags, const std::vector<c10::Device>& devices, Json& settings);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_FLAGS_H_
