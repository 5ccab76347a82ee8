#include "python/extension/copied_optimizer.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/optim/serialize.h>

#include <cstdint>
#include <map>
#include <utility>

namespace gpipe::python {
namespace {

namespace py = pybind11;

using Values = std::map<std::string, c10::IValue>;

// A value of Python as the IValue that LibTorch's archives need. `what`: the value's name in the
// error's message.
c10::IValue to_value(py::handle value, const std::string& what) {
  if (value.is_none()) return {};
  if (PyBool_Check(value.ptr())) return py::cast<bool>(value);
  if (PyLong_Check(value.ptr())) return py::cast<int64_t>(value);
  if (PyFloat_Check(value.ptr())) return py::cast<double>(value);
  if (PyUnicode_Check(value.ptr())) return py::cast<std::string>(value);
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr()).detach();
  TORCH_CHECK_NOT_IMPLEMENTED(
      PyTuple_Check(value.ptr()), what, " is of type ",
      std::string(py::str(py::type::handle_of(value).attr("__name__"))),
      ", which no checkpoint can hold: it holds tensors, numbers, texts, None, and tuples of these "
      "that have no tensor. Save this optimizer's state_dict() by torch.save");
  std::vector<c10::IValue> elements;
  for (const py::handle element : py::reinterpret_borrow<py::tuple>(value)) {
    elements.push_back(to_value(element, "an element of " + what));
  }
  return c10::ivalue::Tuple::create(std::move(elements));
}

py::object to_object(const c10::IValue& value) {
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isString()) return py::str(value.toStringRef());
  if (value.isTensor()) return py::cast(value.toTensor());
  if (!value.isTuple()) return py::none();
  const auto& elements = value.toTupleRef().elements();
  py::tuple tuple(elements.size());
  for (size_t k = 0; k < elements.size(); ++k) tuple[k] = to_object(elements[k]);
  return tuple;
}

Values to_values(const py::dict& dict, const std::string& kind) {
  Values values;
  for (const auto& [key, value] : dict) {
    const std::string name = py::str(key);
    values[name] = to_value(value, kind + " '" + name + "'");
  }
  return values;
}

py::dict to_dict(const Values& values) {
  py::dict dict;
  for (const auto& [name, value] : values) dict[py::str(name)] = to_object(value);
  return dict;
}

// The states of one parameter (Base: OptimizerParamState), or the options of one group (Base:
// OptimizerOptions).
template <typename Base>
struct Kept : Base {
  Kept() = default;
  explicit Kept(int) {}  // NOLINT: LibTorch's template makes options of 0
  explicit Kept(Values given) : values(std::move(given)) {}

  std::unique_ptr<Base> clone() const override { return std::make_unique<Kept>(*this); }
  void serialize(torch::serialize::InputArchive& archive) override {
    values.clear();
    for (const std::string& key : archive.keys()) archive.read(key, values[key]);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    for (const auto& [key, value] : values) archive.write(key, value);
  }

  Values values;
};
using KeptState = Kept<torch::optim::OptimizerParamState>;

// The option 'lr' is what LibTorch asks for as the learning rate.
struct KeptOptions : Kept<torch::optim::OptimizerOptions> {
  using Kept::Kept;
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<KeptOptions>(*this);
  }
  double get_lr() const override {
    const auto rate = values.find("lr");
    if (rate != values.end() && rate->second.isDouble()) return rate->second.toDouble();
    if (rate != values.end() && rate->second.isInt()) {
      return static_cast<double>(rate->second.toInt());
    }
    return OptimizerOptions::get_lr();  // throws
  }
  void set_lr(const double rate) override { values["lr"] = rate; }
};

}  // namespace

std::unique_ptr<torch::optim::OptimizerOptions> kept_options(const py::dict& options) {
  return std::make_unique<KeptOptions>(to_values(options, "option"));
}

CopiedOptimizer::CopiedOptimizer(std::string type, const GivenGroups& groups,
                                 std::function<void()> step)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::make_unique<KeptOptions>()),
      type_(std::move(type)),
      step_(std::move(step)) {
  for (const auto& [parameters, options, states] : groups) {
    add_param_group(torch::optim::OptimizerParamGroup(parameters));
    // LibTorch replaces options of a type that it does not know by the defaults.
    param_groups_.back().set_options(kept_options(options));
  }
  take_states(groups);
}

void CopiedOptimizer::take_states(const GivenGroups& groups) {
  state_.clear();
  for (const auto& [parameters, options, states] : groups) {
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (states[k].is_none()) continue;
      state_[parameters[k].unsafeGetTensorImpl()] = std::make_unique<KeptState>(
          to_values(py::reinterpret_borrow<py::dict>(states[k]), "state"));
    }
  }
}

py::list CopiedOptimizer::groups() const {
  py::list result;
  for (const auto& group : param_groups_) {
    py::list states;
    for (const at::Tensor& parameter : group.params()) {
      const auto state = state_.find(parameter.unsafeGetTensorImpl());
      states.append(state == state_.end()
                        ? py::object(py::none())
                        : to_dict(static_cast<const KeptState&>(*state->second).values));
    }
    result.append(py::make_tuple(to_dict(static_cast<const KeptOptions&>(group.options()).values),
                                 std::move(states)));
  }
  return result;
}

torch::Tensor CopiedOptimizer::step(LossClosure /*closure*/) {
  if (step_) step_();
  return {};
}

void CopiedOptimizer::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<KeptState, KeptOptions>(archive, *this);
}

}  // namespace gpipe::python
