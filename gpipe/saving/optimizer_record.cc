#include "gpipe/saving/optimizer_record.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>
#include <typeinfo>

#include "gpipe/optim/saved_as.h"
#include "safetensors/safetensors.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

using nlohmann::json;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

std::string type_of(const torch::optim::Optimizer& optimizer) {
  const auto* const other = dynamic_cast<const SavedAsOther*>(&optimizer);
  return other != nullptr ? other->saved_type() : c10::demangle(typeid(optimizer).name());
}

// What an archive holds can be read through a file's bytes only, as LibTorch does: milliseconds for
// each parameter of an optimizer, and two copies. So this reaches the private member that has it. A
// template's explicit instantiation may name one.
torch::jit::Module& module_of(OutputArchive& archive);
template <torch::jit::Module OutputArchive::*Member>
struct Reach {
  friend torch::jit::Module& module_of(OutputArchive& archive) { return archive.*Member; }
};
template struct Reach<&OutputArchive::module_>;

std::map<std::string, c10::IValue> values_of(OutputArchive& archive) {
  std::map<std::string, c10::IValue> values;
  for (const auto& attribute : module_of(archive).named_attributes(/*recurse=*/false)) {
    values[attribute.name] = attribute.value;
  }
  return values;
}

// Returns an archive from which the contents of `archive` can be read, made from its bytes.
InputArchive read_again(OutputArchive& archive, const std::string& what) {
  std::string bytes;
  InputArchive read;
  try {
    archive.save_to([&bytes](const void* data, size_t size) {
      bytes.append(static_cast<const char*>(data), size);
      return size;
    });
    read.load_from(bytes.data(), bytes.size());
  } catch (const c10::Error& error) {
    // This happens for the state of LBFGS, which has undefined tensors in its lists.
    TORCH_CHECK_NOT_IMPLEMENTED(false, "LibTorch cannot serialize ", what, ": ",
                                error.what_without_backtrace());
  }
  return read;
}

// A number as JSON. JSON has no infinities, so they are written as objects.
json number(double value) {
  if (std::isfinite(value)) return value;
  return {{"double", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

json to_json(const c10::IValue& value, const std::string& what) {
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return number(value.toDouble());
  if (value.isString()) return value.toStringRef();
  TORCH_CHECK_NOT_IMPLEMENTED(value.isTuple(), what, " is a ", value.tagKind(),
                              ", which no checkpoint can hold; save this optimizer by torch::save");
  json elements = json::array();
  for (const c10::IValue& element : value.toTupleRef().elements()) {
    elements.push_back(to_json(element, what));
  }
  return {{"tuple", elements}};
}

c10::IValue to_value(const json& value) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.contains("double")) {
    const auto text = value.at("double").get<std::string>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    const double infinity = std::numeric_limits<double>::infinity();
    return text == "inf" ? infinity : -infinity;
  }
  std::vector<c10::IValue> elements;
  for (const json& element : value.at("tuple")) elements.push_back(to_value(element));
  return c10::ivalue::Tuple::create(std::move(elements));
}

// Whether the value stands for a tensor, as {"tensor": "F32 [5, 4]"}.
bool is_tensor(const json& value) { return value.is_object() && value.contains("tensor"); }

const std::string& name_of(const at::Tensor& parameter, const ParameterNames& names,
                           const torch::optim::Optimizer& optimizer) {
  const auto name = names.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(name != names.end(), type_of(optimizer), " has a parameter of shape ",
                    parameter.sizes(),
                    " that the model does not have; make the optimizer with the pipeline's "
                    "parameters()");
  return name->second;
}

// The names of a group's parameters. A parameter that the group has several times is listed several
// times, because LibTorch's optimizers step it several times.
std::multiset<std::string> names_of(const torch::optim::OptimizerParamGroup& group,
                                    const ParameterNames& names,
                                    const torch::optim::Optimizer& optimizer) {
  std::multiset<std::string> result;
  for (const at::Tensor& parameter : group.params()) {
    result.insert(name_of(parameter, names, optimizer));
  }
  return result;
}

void check_same(const std::multiset<std::string>& file, const std::multiset<std::string>& optimizer,
                const std::string& what) {
  for (const auto* names : {&file, &optimizer}) {
    for (const std::string& name : *names) {
      TORCH_CHECK_VALUE(file.count(name) == optimizer.count(name), text::in_quotes(name), " is ",
                        file.count(name), " times in ", what, " of the checkpoint, and ",
                        optimizer.count(name), " times in that of the optimizer");
    }
  }
}

json options_of(const torch::optim::OptimizerParamGroup& group,
                const torch::optim::Optimizer& optimizer) {
  OutputArchive archive;
  group.options().serialize(archive);
  json options = json::object();
  for (const auto& [key, value] : values_of(archive)) {
    options[key] = to_json(value, "option " + text::in_quotes(key) + " of " + type_of(optimizer));
  }
  return options;
}

// Whether two options have the same type. A number that is not finite is written as an object, and
// an optional option may be null.
bool same_type(const json& a, const json& b) {
  const auto is_double = [](const json& value) {
    return value.is_number_float() || (value.is_object() && value.contains("double"));
  };
  return a.is_null() || b.is_null() || (is_double(a) && is_double(b)) ||
         (a.is_number_integer() && b.is_number_integer()) || a.type() == b.type();
}

void check_options(const json& file, const json& own, const std::string& where) {
  for (const auto* options : {&file, &own}) {
    for (const auto& [key, value] : options->items()) {
      TORCH_CHECK_VALUE(
          file.contains(key) && own.contains(key) && same_type(file.at(key), own.at(key)),
          "option ", text::in_quotes(key), " of ", where, " is ",
          file.contains(key) ? file.at(key).dump() : "missing", " in the checkpoint, and ",
          own.contains(key) ? own.at(key).dump() : "missing", " in the optimizer");
    }
  }
}

// The states of some parameters: values by the parameter's name and the state's key.
using States = std::map<std::string, std::map<std::string, c10::IValue>>;

// Lets the optimizer read an archive with these states and groups. The archive is as the optimizer
// itself would write it (torch/optim/serialize.h), but with numbers where that writes addresses.
void load_states(torch::optim::Optimizer& optimizer, const ParameterNames& names,
                 const json& groups, const States& states) {
  OutputArchive archive;
  archive.write("pytorch_version", c10::IValue("1.5.0"));
  OutputArchive state_archive(archive.compilation_unit());
  OutputArchive groups_archive(archive.compilation_unit());
  const auto size = [](size_t value) { return torch::tensor(static_cast<int64_t>(value)); };
  groups_archive.write("param_groups/size", size(groups.size()));
  int64_t count = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    OutputArchive group(archive.compilation_unit());
    const std::vector<at::Tensor>& parameters = optimizer.param_groups()[g].params();
    group.write("params/size", size(parameters.size()));
    for (size_t p = 0; p < parameters.size(); ++p) {
      const std::string key = std::to_string(++count);
      group.write("params/" + std::to_string(p), c10::IValue(key));
      const auto state = states.find(name_of(parameters[p], names, optimizer));
      if (state == states.end()) continue;
      OutputArchive parameter_archive(archive.compilation_unit());
      for (const auto& [name, value] : state->second) parameter_archive.write(name, value);
      state_archive.write(key, parameter_archive);
    }
    OutputArchive options(archive.compilation_unit());
    for (const auto& [name, value] : groups[g].at("options").items()) {
      options.write(name, to_value(value));
    }
    group.write("options", options);
    groups_archive.write("param_groups/" + std::to_string(g), group);
  }
  archive.write("state", state_archive);
  archive.write("param_groups", groups_archive);
  InputArchive read = read_again(archive, "the checkpoint's states");
  try {
    optimizer.load(read);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    // The optimizer itself refuses the record, for example because a number is missing.
    TORCH_CHECK_VALUE(false, type_of(optimizer),
                      " cannot read the checkpoint's states: ", error.what_without_backtrace());
  }
}

}  // namespace

std::string kind_of(const std::string& type, at::IntArrayRef shape) {
  std::ostringstream text;
  text << type << " " << shape;
  return text.str();
}

OptimizerRecord record_of(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  // LBFGS is refused here, too, because LibTorch could write its state before its first step, but
  // not later.
  TORCH_CHECK_NOT_IMPLEMENTED(
      dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
      "torch::optim::LBFGS has states that LibTorch cannot write; save the model by torch::save, "
      "and resume with an optimizer that begins anew");
  OptimizerRecord record;
  record.text = {
      {"type", type_of(optimizer)}, {"groups", json::array()}, {"states", json::object()}};
  for (const auto& group : optimizer.param_groups()) {
    json parameters = json::array();
    for (const at::Tensor& parameter : group.params()) {
      const std::string& name = name_of(parameter, names, optimizer);
      parameters.push_back(name);
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      // A tied parameter that the optimizer has twice is recorded once.
      if (state == optimizer.state().end() || record.text["states"].contains(name)) continue;
      OutputArchive states;
      state->second->serialize(states);
      // An empty state is recorded, too, because it shows that the parameter has one.
      json& values = record.text["states"][name] = json::object();
      for (auto& [key, value] : values_of(states)) {
        if (value.isTensor() && value.toTensor().defined()) {
          const at::Tensor& tensor = value.toTensor();
          values[key] = {
              {"tensor", kind_of(safetensors::type_name(tensor.scalar_type()), tensor.sizes())}};
          record.tensors.emplace_back(name + "/" + key, tensor);
        } else {
          values[key] =
              to_json(value, "state " + text::in_quotes(key) + " of " + text::in_quotes(name));
        }
      }
    }
    record.text["groups"].push_back(
        {{"parameters", parameters}, {"options", options_of(group, optimizer)}});
  }
  return record;
}

int64_t parameters_in(const json& text) {
  int64_t count = 0;
  for (const json& group : text.at("groups")) {
    count += static_cast<int64_t>(group.at("parameters").size());
  }
  return count;
}

bool merge_record(json& text, const json& more) {
  json& groups = text.at("groups");
  const json& others = more.at("groups");
  if (text.at("type") != more.at("type") || groups.size() != others.size()) return false;
  for (size_t k = 0; k < groups.size(); ++k) {
    if (groups[k].at("options") != others[k].at("options")) return false;
    for (const json& name : others[k].at("parameters")) groups[k].at("parameters").push_back(name);
  }
  text.at("states").update(more.at("states"));
  return true;
}

json part_of_record(json text, const std::unordered_set<std::string>& names) {
  for (json& group : text.at("groups")) {
    json parameters = json::array();
    for (const json& name : group.at("parameters")) {
      if (names.count(name.get<std::string>()) != 0) parameters.push_back(name);
    }
    group.at("parameters") = std::move(parameters);
  }
  json& states = text.at("states");
  for (auto state = states.begin(); state != states.end();) {
    state = names.count(state.key()) != 0 ? std::next(state) : states.erase(state);
  }
  return text;
}

void check_record(const torch::optim::Optimizer& optimizer, const ParameterNames& names,
                  const json& text, const TensorKinds& tensors) {
  const auto type = text.at("type").get<std::string>();
  TORCH_CHECK_VALUE(type == type_of(optimizer), "the checkpoint is of an optimizer ", type,
                    ", not of ", type_of(optimizer));
  const json& groups = text.at("groups");
  const auto& own = optimizer.param_groups();
  TORCH_CHECK_VALUE(groups.size() == own.size(), "the checkpoint's optimizer has ", groups.size(),
                    " groups of parameters, this one has ", own.size());
  const auto* const other = dynamic_cast<const SavedAsOther*>(&optimizer);
  const bool takes_any = other != nullptr && other->takes_other_options();
  std::map<std::string, at::Tensor> parameters;
  for (size_t g = 0; g < own.size(); ++g) {
    const std::string where = "group " + std::to_string(g);
    check_same(groups.at(g).at("parameters").get<std::multiset<std::string>>(),
               names_of(own[g], names, optimizer), where);
    if (!takes_any) {
      check_options(groups.at(g).at("options"), options_of(own[g], optimizer), where);
    }
    for (const at::Tensor& parameter : own[g].params()) {
      parameters[name_of(parameter, names, optimizer)] = parameter;
    }
  }
  const bool of_libtorch = type.rfind("torch::optim::", 0) == 0;
  TensorKinds left = tensors;
  for (const auto& [name, values] : text.at("states").items()) {
    const auto parameter = parameters.find(name);
    TORCH_CHECK_VALUE(parameter != parameters.end(), "the checkpoint has a state of ",
                      gpipe::text::in_quotes(name), ", which the optimizer does not have");
    for (const auto& [key, value] : values.items()) {
      if (!is_tensor(value)) continue;
      const auto kind = value.at("tensor").get<std::string>();
      const auto tensor = left.find(name + "/" + key);
      TORCH_CHECK_VALUE(tensor != left.end(), "the checkpoint has no ",
                        gpipe::text::in_quotes(name + "/" + key));
      TORCH_CHECK_VALUE(tensor->second == kind, "the checkpoint's ",
                        gpipe::text::in_quotes(name + "/" + key), " is ", tensor->second,
                        ", it should be ", gpipe::text::shown(kind));
      const std::string shape = kind_of("", parameter->second.sizes());
      TORCH_CHECK_VALUE(!of_libtorch || kind.substr(kind.find(' ')) == shape, "the checkpoint's ",
                        gpipe::text::in_quotes(name + "/" + key), " is ", gpipe::text::shown(kind),
                        ", and the parameter", shape);
      left.erase(tensor);
    }
  }
  TORCH_CHECK_VALUE(left.empty(), "the checkpoint has ",
                    gpipe::text::in_quotes(left.begin()->first),
                    ", which is not a state of a parameter");
}

void restore(torch::optim::Optimizer& optimizer, const ParameterNames& names, const json& text,
             const std::function<at::Tensor(const std::string&)>& read, int64_t part_bytes) {
  std::map<std::string, at::Tensor> parameters;
  json own = json::array();
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      parameters[name_of(parameter, names, optimizer)] = parameter;
    }
    own.push_back({{"options", options_of(group, optimizer)}});
  }
  States states;
  int64_t bytes = 0;
  auto before = std::move(optimizer.state());
  optimizer.state().clear();
  try {
    for (const auto& [name, values] : text.at("states").items()) {
      const at::Tensor& parameter = parameters.at(name);
      auto& state = states[name];
      for (const auto& [key, value] : values.items()) {
        if (!is_tensor(value)) {
          state[key] = to_value(value);
          continue;
        }
        at::Tensor tensor = read(name + "/" + key);
        bytes += static_cast<int64_t>(tensor.nbytes());
        if (tensor.sizes() == parameter.sizes()) tensor = tensor.to(parameter.device());
        state[key] = tensor;
      }
      if (bytes < part_bytes) continue;
      load_states(optimizer, names, own, states);
      states.clear();
      bytes = 0;
    }
    // This is called even if no states are left, because it also sets the options. Nothing can fail
    // after this call.
    load_states(optimizer, names, text.at("groups"), states);
  } catch (...) {
    optimizer.state() = std::move(before);
    throw;
  }
}

}  // namespace gpipe::internal
