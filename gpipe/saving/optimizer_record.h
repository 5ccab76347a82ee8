// OptimizerRecord: what an optimizer knows, under the names of the model's parameters, as text and
// tensors.
//
// LibTorch's own archives name parameters by their addresses and order, so that only the same
// program, with the same order of parameters, reads them.
#ifndef GPIPE_SAVING_OPTIMIZER_RECORD_H_
#define GPIPE_SAVING_OPTIMIZER_RECORD_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpipe::internal {

// "0.weight" of each parameter. A parameter that has several names has its first.
using ParameterNames = std::unordered_map<const c10::TensorImpl*, std::string>;

// A value type; the tensors are copies.
struct OptimizerRecord {
  // {"type": "torch::optim::Adam",
  //  "groups": [{"parameters": ["0.weight", ...], "options": {"lr": 0.1, ...}}, ...],
  //  "values": {"0.weight": {"step": 3}, ...}}
  nlohmann::json text;
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // "0.weight/exp_avg", ...
};

// Works for each optimizer whose states and options can be serialized. Parameters that have made no
// step have no state. Takes memory for a copy of the states.
//
// Throws c10::ValueError for a parameter that has no name, and c10::NotImplementedError for states
// or options that are neither tensors, numbers, texts nor pairs of them (LBFGS).
OptimizerRecord record_of(const torch::optim::Optimizer& optimizer, const ParameterNames& names);

// Throws c10::ValueError that names the difference unless a record with this text, and tensors of
// these names, is of such an optimizer: the same type, with the same parameters in each group, in
// any order. Nothing is left over and nothing is missing.
void check_record(const torch::optim::Optimizer& optimizer, const ParameterNames& names,
                  const nlohmann::json& text, const std::vector<std::string>& tensors);

// Gives the optimizer the states and options of a record that check_record() has found good.
// `read` gives a tensor of the record. States as large as their parameter go to its device. A
// parameter without state in the record has none afterwards. Throws what `read` throws, and
// c10::Error for states that the optimizer cannot read; the optimizer may then have some of them.
void restore(torch::optim::Optimizer& optimizer, const ParameterNames& names,
             const nlohmann::json& text, const std::vector<std::string>& tensors,
             const std::function<at::Tensor(const std::string& name)>& read);

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_OPTIMIZER_RECORD_H_
