// OptimizerRecord: the states and options of an optimizer, as text and tensors, under the names of
// the model's parameters.
//
// LibTorch's own archives name parameters by their addresses and order. So only the same program,
// with the same order of parameters, can read them.
#ifndef GPIPE_SAVING_OPTIMIZER_RECORD_H_
#define GPIPE_SAVING_OPTIMIZER_RECORD_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpipe::internal {

// The name of each parameter, such as "0.weight"; the first one if it has several.
using ParameterNames = std::unordered_map<const c10::TensorImpl*, std::string>;

// The type and shape of each tensor of a file by its name, such as "F32 [5, 4]".
using TensorKinds = std::map<std::string, std::string>;
std::string kind_of(const std::string& type, at::IntArrayRef shape);

// A value type; the tensors share memory with the states of the optimizer.
struct OptimizerRecord {
  // {"type": "torch::optim::Adam",
  //  "groups": [{"parameters": ["0.weight", ...], "options": {"lr": 0.1, ...}}, ...],
  //  "states": {"0.weight": {"step": 3, "exp_avg": {"tensor": "F32 [5, 4]"}, ...}, ...}}
  nlohmann::json text;
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // "0.weight/exp_avg", ...
};

// The record of any optimizer whose states and options can be serialized. Parameters that have made
// no step have no state.
//
// Throws c10::ValueError for a parameter that has no name, and c10::NotImplementedError for LBFGS
// and for states or options that are neither tensors, numbers, texts nor pairs of them.
OptimizerRecord record_of(const torch::optim::Optimizer& optimizer, const ParameterNames& names);

// The number of parameters in the groups of a record with this text.
int64_t parameters_in(const nlohmann::json& text);

// Adds to a record what another optimizer with the same groups has for other parameters. Returns
// false if the type, the groups or the options differ; then `text` cannot be used any more. Throws
// nlohmann::json::exception if a text is not that of a record.
bool merge_record(nlohmann::json& text, const nlohmann::json& more);

// The part of a record that concerns these parameters.
nlohmann::json part_of_record(nlohmann::json text, const std::unordered_set<std::string>& names);

// Throws c10::ValueError that names the difference, unless a record with this text and these
// tensors fits the optimizer. It must have the same type, the same parameters in each group, in any
// order, and the same options by name and type. The tensors must be those that the text lists, with
// none missing and none left over. For LibTorch's optimizers they must have the shape of their
// parameter. Throws nlohmann::json::exception if the text is not that of a record.
void check_record(const torch::optim::Optimizer& optimizer, const ParameterNames& names,
                  const nlohmann::json& text, const TensorKinds& tensors);

// Gives the optimizer the states and options of a record that check_record() has accepted. `read`
// returns a tensor of the record. States with the shape of their parameter go to its device. A
// parameter without state in the record has none afterwards.
//
// Throws what `read` throws, and c10::ValueError if a number is missing. In both cases the
// optimizer is as it was, because its old states are kept until the new ones are there. The new
// states are read in parts of about `part_bytes`, because LibTorch's archives take twice their
// memory in addition.
void restore(torch::optim::Optimizer& optimizer, const ParameterNames& names,
             const nlohmann::json& text,
             const std::function<at::Tensor(const std::string& name)>& read,
             int64_t part_bytes = int64_t{256} << 20);

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_OPTIMIZER_RECORD_H_
