#include "gpipe/saving/optimizer_record.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <typeinfo>

namespace gpipe::internal {
namespace {

using nlohmann::json;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

std::string type_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

// What was written to an archive can be read only from its bytes.
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
    // LBFGS' has undefined tensors in its lists.
    TORCH_CHECK_NOT_IMPLEMENTED(false, "LibTorch cannot serialize ", what, ": ",
                                error.what_without_backtrace());
  }
  return read;
}

std::map<std::string, c10::IValue> values_of(InputArchive archive) {
  std::map<std::string, c10::IValue> values;
  for (const std::string& key : archive.keys()) archive.read(key, values[key]);
  return values;
}

// JSON has no infinities.
json number(double value) {
  if (std::isfinite(value)) return value;
  return {{"double", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

json to_json(const c10::IValue& value, const std::string& what) {
  if (value.isNone()) return nullptr;
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

const std::string& name_of(const at::Tensor& parameter, const ParameterNames& names,
                           const torch::optim::Optimizer& optimizer) {
  const auto name = names.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(name != names.end(), type_of(optimizer), " has a parameter of shape ",
                    parameter.sizes(),
                    " that is none of the model's; make it with the pipeline's "
                    "parameters()");
  return name->second;
}

// "0.weight/exp_avg": what stands before and behind the last slash.
std::pair<std::string, std::string> split(const std::string& name) {
  const size_t slash = name.rfind('/');
  TORCH_CHECK_VALUE(slash != std::string::npos, "'", name, "' is no state of a parameter");
  return {name.substr(0, slash), name.substr(slash + 1)};
}

std::set<std::string> names_of(const torch::optim::OptimizerParamGroup& group,
                               const ParameterNames& names,
                               const torch::optim::Optimizer& optimizer) {
  std::set<std::string> result;
  for (const at::Tensor& parameter : group.params()) {
    result.insert(name_of(parameter, names, optimizer));
  }
  return result;
}

// What is in one set only, for messages.
void check_same(const std::set<std::string>& file, const std::set<std::string>& optimizer,
                const std::string& where) {
  for (const std::string& name : file) {
    TORCH_CHECK_VALUE(optimizer.count(name) != 0, "'", name, "' is in ", where,
                      " of the checkpoint, and not in that of the optimizer");
  }
  for (const std::string& name : optimizer) {
    TORCH_CHECK_VALUE(file.count(name) != 0, "'", name, "' is in ", where,
                      " of the optimizer, and not in that of the checkpoint");
  }
}

// The states of some parameters, as values by key.
using States = std::map<std::string, std::map<std::string, c10::IValue>>;

// Lets the optimizer read an archive with these states and its groups, as it would write it itself
// (torch/optim/serialize.h), with numbers where it writes addresses.
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
      OutputArchive one(archive.compilation_unit());
      for (const auto& [name, value] : state->second) one.write(name, value);
      state_archive.write(key, one);
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
  optimizer.load(read);
}

// States are read in parts of this size, for an archive holds them twice more.
constexpr int64_t kPartBytes = int64_t{256} << 20;

}  // namespace

OptimizerRecord record_of(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  OptimizerRecord record;
  record.text = {
      {"type", type_of(optimizer)}, {"groups", json::array()}, {"values", json::object()}};
  for (const auto& group : optimizer.param_groups()) {
    OutputArchive archive;
    group.options().serialize(archive);
    json options = json::object();
    for (const auto& [key, value] : values_of(read_again(archive, "the options"))) {
      options[key] = to_json(value, "option '" + key + "' of " + type_of(optimizer));
    }
    json parameters = json::array();
    for (const at::Tensor& parameter : group.params()) {
      const std::string& name = name_of(parameter, names, optimizer);
      parameters.push_back(name);
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      OutputArchive states;
      state->second->serialize(states);
      // Also where it has tensors only: it is there.
      json& values = record.text["values"][name] = json::object();
      for (auto& [key, value] : values_of(read_again(states, "the state of '" + name + "'"))) {
        if (value.isTensor()) {
          record.tensors.emplace_back(name + "/" + key, value.toTensor());
        } else {
          values[key] = to_json(value, "state '" + key + "' of '" + name + "'");
        }
      }
    }
    record.text["groups"].push_back({{"parameters", parameters}, {"options", options}});
  }
  return record;
}

void check_record(const torch::optim::Optimizer& optimizer, const ParameterNames& names,
                  const json& text, const std::vector<std::string>& tensors) {
  const auto type = text.at("type").get<std::string>();
  TORCH_CHECK_VALUE(type == type_of(optimizer), "the checkpoint is of an optimizer ", type,
                    ", not of ", type_of(optimizer));
  const json& groups = text.at("groups");
  const auto& own = optimizer.param_groups();
  TORCH_CHECK_VALUE(groups.size() == own.size(), "the checkpoint's optimizer has ", groups.size(),
                    " groups of parameters, this one has ", own.size());
  std::set<std::string> all;
  for (size_t g = 0; g < own.size(); ++g) {
    const std::set<std::string> expected = names_of(own[g], names, optimizer);
    check_same(groups[g].at("parameters").get<std::set<std::string>>(), expected,
               "group " + std::to_string(g));
    all.insert(expected.begin(), expected.end());
  }
  const json& values = text.at("values");
  for (const auto& [name, value] : values.items()) {
    TORCH_CHECK_VALUE(all.count(name) != 0, "the checkpoint has a state of '", name,
                      "', which the optimizer does not have");
  }
  for (const std::string& tensor : tensors) {
    const std::string name = split(tensor).first;
    TORCH_CHECK_VALUE(values.contains(name), "the checkpoint has '", tensor, "', but no state of '",
                      name, "'");
  }
}

void restore(torch::optim::Optimizer& optimizer, const ParameterNames& names, const json& text,
             const std::vector<std::string>& tensors,
             const std::function<at::Tensor(const std::string&)>& read) {
  std::map<std::string, at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      parameters[name_of(parameter, names, optimizer)] = parameter;
    }
  }
  std::map<std::string, std::vector<std::string>> tensors_of;
  for (const std::string& tensor : tensors) tensors_of[split(tensor).first].push_back(tensor);

  const json& groups = text.at("groups");
  States states;
  int64_t bytes = 0;
  optimizer.state().clear();
  for (const auto& [name, values] : text.at("values").items()) {
    const at::Tensor& parameter = parameters.at(name);
    auto& state = states[name];
    for (const auto& [key, value] : values.items()) state[key] = to_value(value);
    for (const std::string& tensor : tensors_of[name]) {
      at::Tensor value = read(tensor);
      bytes += static_cast<int64_t>(value.nbytes());
      if (value.sizes() == parameter.sizes()) value = value.to(parameter.device());
      state[split(tensor).second] = value;
    }
    if (bytes < kPartBytes) continue;
    load_states(optimizer, names, groups, states);
    states.clear();
    bytes = 0;
  }
  // Also where there are no states at all: the options.
  load_states(optimizer, names, groups, states);
}

}  // namespace gpipe::internal
