// Pipeline: a gpipe::GPipe whose layers are modules of Python.
#ifndef PYTHON_EXTENSION_PIPELINE_H_
#define PYTHON_EXTENSION_PIPELINE_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "python/extension/layer.h"

namespace gpipe::python {

// As in GPipeOptions.
struct PipelineSettings {
  std::vector<int64_t> balance;
  std::vector<std::string> devices;  // "cpu", "cuda:1"
  int64_t chunks = 1;
  std::vector<std::string> checkpoints;  // one, or one for each partition
  bool deferred_batch_norm = false;
  std::vector<int64_t> shared_inputs;
  std::optional<std::vector<int64_t>> worker_of_stage;
  int64_t groups = 0;
  int64_t cpu_threads_per_stage = 0;
};

// As in StepOptions. `schedule`: a name, or the text of a Schedule, which has several lines;
// empty: the default.
struct StepSettings {
  std::string schedule;
  std::string reduction = "mean";
  pybind11::object weight;
  bool keep_outputs = false;
  bool check_finite = false;
};

// Requirements: everything is called with the GIL; what takes time releases it.
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

  // `training`: the mode of the pipeline itself; those of its layers are theirs.
  pybind11::object forward(pybind11::handle input, bool training);

  struct Result {
    double loss;
    std::vector<double> losses;
    pybind11::object outputs;  // None, unless they are to be kept
  };
  // `target` may be None: `loss_fn` is then given the output alone.
  Result step(pybind11::handle input, pybind11::handle target, const pybind11::object& loss_fn,
              const StepSettings& settings, bool training);
  Result evaluate(pybind11::handle input, pybind11::handle target, const pybind11::object& loss_fn,
                  const StepSettings& settings, bool training);

  std::vector<std::string> devices() const;
  double clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite);
  std::string parameter_hash();

 private:
  // Takes over the layers' modules, parameters, buffers and modes as they are now, when no run
  // reads them: it waits for one of another thread.
  void update(bool training);
  Result run(pybind11::handle input, pybind11::handle target, const pybind11::object& loss_fn,
             const StepSettings& settings, bool training, bool backward);

  std::vector<std::shared_ptr<Layer>> layers_;
  GPipe pipe_{nullptr};
};

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_PIPELINE_H_
