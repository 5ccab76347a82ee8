// Pipeline: a gpipe::GPipe whose layers are modules of Python.
#ifndef PYTHON_EXTENSION_PIPELINE_H_
#define PYTHON_EXTENSION_PIPELINE_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/world.h"
#include "python/extension/layer.h"

namespace gpipe::python {

// Throws pybind11::value_error for a name that does not exist.
Checkpoint checkpoint_of(const std::string& name);
// The C++ loss function that calls a loss function of Python.
LossFn loss_of(const pybind11::object& function);

// The settings of a pipeline, as in GPipeOptions.
struct PipelineSettings {
  std::vector<int64_t> balance;
  std::vector<std::string> devices;  // "cpu", "cuda:1"
  int64_t chunks = 1;
  std::vector<std::string> checkpoints;  // one, or one for each partition
  bool deferred_batch_norm = false;
  std::vector<int64_t> shared_inputs;
  std::optional<std::vector<int64_t>> worker_of_stage;
  std::optional<std::vector<int64_t>> process_of_worker;
  World world;
  int64_t groups = 0;
  int64_t cpu_threads_per_stage = 0;
};

// The settings of a step, as in StepOptions. `schedule`: a name, or the text of a Schedule, which
// has several lines; empty: the default.
struct StepSettings {
  std::string schedule;
  std::string reduction = "mean";
  pybind11::object weight;
  bool keep_outputs = false;
  bool check_finite = false;
  double loss_scale = 1;
};

// Throws pybind11::value_error for a reduction that does not exist, and what schedule_by_name() and
// Schedule::from_text() throw.
StepOptions step_options_of(const StepSettings& settings);

// Requirements: all functions are called with the GIL. Functions that take time release it.
//
// Thread-safety: as GPipe's, calls from several threads run one after another.
class Pipeline {
 public:
  // Throws what GPipe throws.
  Pipeline(const std::vector<std::pair<std::string, pybind11::object>>& layers,
           const PipelineSettings& settings);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Takes over the layers' modules, parameters, buffers and modes as they are now. Waits for a run
  // of another thread first, because the run reads them. `training`: the mode of the pipeline
  // itself; its layers have the modes of their Python modules. Returns false if the layers have
  // other modules with skips than before, so that the pipeline must be made again.
  bool update(bool training);
  // Takes over modes, and parameters and buffers that were replaced, for a backward.
  void update_known();

  // Over processes the input may be None in a process without the first stage, and the result is
  // None in a process without the last stage.
  pybind11::object forward(pybind11::handle input);

  struct Result {
    double loss;
    std::vector<double> losses;
    pybind11::object outputs;  // None, unless they are to be kept
  };
  // `target` may be None: `loss_fn` is then given the output alone.
  Result step(pybind11::handle input, pybind11::handle target, const pybind11::object& loss_fn,
              const StepSettings& settings);
  Result evaluate(pybind11::handle input, pybind11::handle target, const pybind11::object& loss_fn,
                  const StepSettings& settings);

  std::vector<std::string> devices() const;
  bool is_here(int64_t layer) const;
  std::vector<std::pair<std::string, at::Tensor>> local_named_parameters();
  double clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite);
  std::string parameter_hash();
  // `init`: called as init(name, tensor, generator) for each tensor.
  void materialize(const pybind11::object& init);

  GPipe& gpipe() { return pipe_; }

  // For Python's garbage collector, as a type's tp_traverse and tp_clear: a layer may refer to its
  // pipeline (by a hook, say), and only the collector can free such a circle. It calls clear() for
  // a pipeline that nothing refers to, hence no call, no output and no run. Without the GIL nothing
  // changes what traverse() reads.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  // Calls `update`, which may change the layers, while no run reads them.
  template <typename Update>
  void between_runs(const Update& update);
  // The tensors of an input. The input is None if another process has it.
  Tensors inputs_of(pybind11::handle input) const;
  Result run(pybind11::handle input, pybind11::handle target, const pybind11::object& loss_fn,
             const StepSettings& settings, bool backward);

  std::vector<std::shared_ptr<Layer>> layers_;
  bool layers_changed_ = false;  // since they were made
  GPipe pipe_{nullptr};
};

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_PIPELINE_H_
