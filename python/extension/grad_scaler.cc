#include "python/extension/grad_scaler.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "gpipe/grad_scaler.h"
#include "python/extension/calling.h"
#include "python/extension/copied_optimizer.h"
#include "python/extension/gil.h"
#include "python/extension/pipeline.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

// Requirements: all functions are called with the GIL. Functions that take time release it.
class Scaler {
 public:
  Scaler(Pipeline& pipeline, double init_scale, double growth_factor, double backoff_factor,
         int64_t growth_interval, bool enabled)
      : scaler_(std::make_unique<GradScaler>(pipeline.gpipe(), GradScalerOptions()
                                                                   .init_scale(init_scale)
                                                                   .growth_factor(growth_factor)
                                                                   .backoff_factor(backoff_factor)
                                                                   .growth_interval(growth_interval)
                                                                   .enabled(enabled))) {}
  // The scaler may be the last that has the pipeline, which is destroyed without the GIL
  // (Pipeline::~Pipeline).
  ~Scaler() {
    without_gil([&] { scaler_.reset(); });
  }
  Scaler(const Scaler&) = delete;
  Scaler& operator=(const Scaler&) = delete;

  bool unscale() {
    return without_gil([&] { return scaler_->unscale_(); });
  }
  // `groups`: the optimizer's, without options and states. `step`: makes the optimizer's step.
  bool step(const GivenGroups& groups, const py::object& step) {
    const Held own_step(step);
    CopiedOptimizer copy(/*type=*/"", groups, [&] { calling([&] { (void)own_step.get()(); }); });
    torch::optim::Optimizer& optimizer = copy;
    return without_gil([&] { return scaler_->step(optimizer); });
  }
  void update() { scaler_->update(); }
  std::pair<double, int64_t> state() const {
    return {scaler_->state().scale, scaler_->state().growth_steps};
  }
  void load(double scale, int64_t growth_steps) { scaler_->load({scale, growth_steps}); }

 private:
  std::unique_ptr<GradScaler> scaler_;
};

}  // namespace

void define_grad_scaler(py::module_& module) {
  py::class_<Scaler>(module, "GradScaler")
      .def(py::init<Pipeline&, double, double, double, int64_t, bool>())
      .def("unscale", &Scaler::unscale)
      .def("step", &Scaler::step)
      .def("update", &Scaler::update)
      .def("state", &Scaler::state)
      .def("load", &Scaler::load);
}

}  // namespace gpipe::python
