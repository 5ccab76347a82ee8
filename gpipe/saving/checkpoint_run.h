// CheckpointRun: what a checkpoint has of a run, written to and read from any place: a folder
// (saving.h) or memory (snapshot.h).
#ifndef GPIPE_SAVING_CHECKPOINT_RUN_H_
#define GPIPE_SAVING_CHECKPOINT_RUN_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/saving/checkpoint_files.h"
#include "gpipe/saving/saving.h"
#include "gpipe/world.h"
#include "safetensors/safetensors.h"

namespace gpipe::internal {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// The state of LibTorch's default generator on the CPU.
at::Tensor generator_state();
void set_generator_state(const at::Tensor& state);

// Parameters and buffers, each once, under its first name.
Named state_of(GPipe& pipe);

Progress progress_of(const safetensors::File& file);

// Checks that the files have the model's tensors, with their shapes and types, including the
// tensors of layers in other processes. `alone`: there are no other processes.
void check_model(const Named& state, const Shards& files, bool alone);

// The parts of a model over processes.
struct ModelParts {
  GPipe& pipe;
  Processes* const processes = pipe->world().processes().get();

  // The parts belong to the stages of one replica: all replicas have the same, and the first one
  // writes them to a disk.
  const World& world = pipe->world();
  const int64_t rank = world.process();
  const int64_t size = world.processes_each();

  // Waits without a limit for the values of all processes, as writing and reading may take long.
  std::vector<std::string> exchange(const std::string& name, const std::string& value) const;
  // The tensors of the layers of this process; a tied tensor only if this process owns it.
  Named here(const Named& state) const;
  void read(const Named& state, const Shards& files) const;
};

// Where the files of a checkpoint go. All processes make the same calls.
class CheckpointSink {
 public:
  using Metadata = std::map<std::string, std::string>;

  virtual ~CheckpointSink() = default;
  // Whether the files go to this process's memory. Then each replica keeps the files that are the
  // same in all replicas; otherwise the first one does. And then the processes compare what must be
  // the same only when the files are written, in the exchange of the fingerprints: files in memory
  // that were written in vain cost less than an exchange.
  virtual bool is_in_memory() const = 0;
  // Called first.
  virtual void check() {}
  // `files`: the names of all files. `writes`: whether this process writes any of them.
  virtual void begin(const std::vector<std::string>& files, bool writes) = 0;
  // Returns the fingerprint.
  virtual std::string write(const std::string& name, const Named& tensors,
                            const Metadata& metadata) = 0;
  // What this process tells the sinks of the others, when all other files are written.
  virtual std::string told(const at::Tensor& generator) const {
    (void)generator;
    return "";
  }
  // Writes the progress file. `told`: by rank.
  virtual void end(const at::Tensor& generator, const Metadata& metadata,
                   const std::vector<std::string>& told) = 0;
};

// Throws what save_run() throws for an optimizer of which no checkpoint can be written: LBFGS, and
// one of other parameters. Each process may call this by itself.
void check_can_be_saved(GPipe& pipe, torch::optim::Optimizer& optimizer);

// Throws std::runtime_error if the file system cannot replace the checkpoint at `path` by the next
// one at once. Tries it with two empty folders beside `path`, and does not throw where these cannot
// be made. Each process may call this by itself.
void check_replaceable(const std::string& path);

// Writes the run to a sink. All processes call this. `call`: the name of the user's call, such as
// "save_checkpoint".
void save_run(const std::string& call, GPipe& pipe, torch::optim::Optimizer& optimizer,
              const Progress& progress,
              const std::function<std::unique_ptr<CheckpointSink>(const ModelParts& parts)>& sink);

// Restores the run from the files that `open` opens within the call.
Progress load_run(
    const std::string& call, GPipe& pipe, torch::optim::Optimizer& optimizer,
    const std::function<std::unique_ptr<CheckpointFiles>(const ModelParts& parts)>& open);

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_CHECKPOINT_RUN_H_
