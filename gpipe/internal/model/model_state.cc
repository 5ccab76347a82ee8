#include "gpipe/internal/model/model_state.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "gpipe/internal/tensors/alias.h"
#include "text/shown.h"

namespace gpipe::internal {

ModelState::ModelState(const std::vector<const std::vector<Layer>*>& partitions,
                       std::vector<Tied> tied)
    : of_stage_(partitions.size()), tied_(std::move(tied)) {
  // A parameter and a buffer may have the same storage. A sparse tensor has no storage.
  const auto own = [this](const c10::StorageImpl* storage, bool is_parameter) {
    if (storage != nullptr) storages_[storage] |= is_parameter;
  };
  for (size_t j = 0; j < partitions.size(); ++j) {
    const auto stage = static_cast<int64_t>(j);
    for (const Layer& layer : *partitions[j]) {
      const std::shared_ptr<torch::nn::Module> module = layer.module.ptr();
      for (const auto& item : module->named_parameters()) {
        const at::Tensor& tensor = item.value();
        if (!tensor.defined()) continue;
        const auto [place, fresh] =
            numbers_.try_emplace(tensor.unsafeGetTensorImpl(), parameters_.size());
        if (fresh) {
          parameters_.push_back({layer.name + "." + item.key(),
                                 tensor,
                                 {},
                                 tensor.requires_grad(),
                                 version_of(tensor),
                                 storage_of(tensor)});
          own(parameters_.back().storage, /*is_parameter=*/true);
        }
        auto& stages = parameters_[place->second].stages;
        if (!stages.empty() && stages.back() == stage) continue;
        stages.push_back(stage);
        of_stage_[j].push_back(place->second);
      }
      for (const at::Tensor& buffer : module->buffers()) {
        if (buffer.defined()) own(storage_of(buffer), /*is_parameter=*/false);
      }
      modes_.push_back({module, layer.name, stage, module->is_training()});
      for (const auto& item : module->named_modules(layer.name, /*include_self=*/false)) {
        modes_.push_back({item.value(), item.key(), stage, item.value()->is_training()});
      }
    }
  }
  for (const Tied& tied : tied_) {
    const std::optional<size_t> number = number_of(tied.parameter);
    if (!number) continue;  // its layer has another parameter by now
    for (const at::Tensor& copy : tied.copies) {
      numbers_[copy.unsafeGetTensorImpl()] = *number;
      own(storage_of(copy), /*is_parameter=*/true);
    }
    auto& stages = parameters_[*number].stages;
    for (const int64_t stage : tied.stages) {
      if (std::find(stages.begin(), stages.end(), stage) != stages.end()) continue;
      stages.push_back(stage);
      of_stage_[static_cast<size_t>(stage)].push_back(*number);
    }
    std::sort(stages.begin(), stages.end());
  }
}

const ModelState::Parameter* ModelState::find(const at::Tensor& tensor) const {
  const std::optional<size_t> number = number_of(tensor);
  return number ? &parameters_[*number] : nullptr;
}

std::optional<size_t> ModelState::number_of(const at::Tensor& tensor) const {
  const auto found = numbers_.find(tensor.unsafeGetTensorImpl());
  if (found == numbers_.end()) return std::nullopt;
  return found->second;
}

const at::Tensor& ModelState::used_on(c10::Device device, const at::Tensor& parameter) const {
  for (const Tied& tied : tied_) {
    if (!tied.parameter.is_same(parameter)) continue;
    for (const at::Tensor& copy : tied.copies) {
      if (copy.device() == device) return copy;
    }
  }
  return parameter;
}

void ModelState::check_parameters(int64_t stage) const {
  for (size_t number : of_stage_[stage]) {
    const Parameter& parameter = parameters_[number];
    const int64_t now = version_of(parameter.tensor);
    constexpr char kHint[] =
        ", while micro-batches have still to be run or recomputed with it. Change parameters after "
        "backward; between forward and backward, Checkpoint::kNever leaves it to autograd to tell "
        "whether it matters";
    TORCH_CHECK(
        now == parameter.version, "the parameter ", text::in_quotes(parameter.name),
        " has been modified by an inplace operation since this mini-batch's forward began (it "
        "is at version ",
        now, "; expected version ", parameter.version, ")", kHint);
    TORCH_CHECK(storage_of(parameter.tensor) == parameter.storage, "the parameter ",
                text::in_quotes(parameter.name),
                " has been given other memory since this mini-batch's forward began (as set_data() "
                "does, and to() with another dtype or device)",
                kHint);
  }
}

void ModelState::check_same(const ModelState& now, const std::vector<bool>& recomputing) const {
  auto involved = [&](int64_t stage) { return recomputing[stage]; };
  constexpr char kHint[] =
      "; the recompute of checkpointed micro-batches would give the gradient of another function. "
      "Change it after backward, or use Checkpoint::kNever";
  for (size_t j = 0; j < of_stage_.size(); ++j) {
    if (!involved(static_cast<int64_t>(j))) continue;
    check_parameters(static_cast<int64_t>(j));
    bool same = of_stage_[j].size() == now.of_stage_[j].size();
    for (size_t k = 0; same && k < of_stage_[j].size(); ++k) {
      const Parameter& before = parameters_[of_stage_[j][k]];
      const Parameter& after = now.parameters_[now.of_stage_[j][k]];
      same = before.tensor.is_same(after.tensor);
      TORCH_CHECK(!same || before.requires_grad == after.requires_grad, "requires_grad of ",
                  text::in_quotes(before.name), " was set to ",
                  after.requires_grad ? "true" : "false", " between forward and backward", kHint);
    }
    TORCH_CHECK(same, "a parameter or a module with parameters was replaced in stage ", j,
                " between forward and backward", kHint);
  }
  const auto modules_of = [&](const ModelState& state) {
    std::vector<const Mode*> modules;
    for (const Mode& mode : state.modes_) {
      if (involved(mode.stage)) modules.push_back(&mode);
    }
    return modules;
  };
  const std::vector<const Mode*> before = modules_of(*this);
  const std::vector<const Mode*> after = modules_of(now);
  bool same = before.size() == after.size();
  for (size_t k = 0; same && k < before.size(); ++k) {
    same = before[k]->module == after[k]->module;
    TORCH_CHECK(!same || before[k]->training == after[k]->training, "the module ",
                text::in_quotes(before[k]->name), " was set to ",
                after[k]->training ? "train" : "eval", " mode between forward and backward", kHint);
  }
  TORCH_CHECK(same, "a module was replaced between forward and backward", kHint);
}

}  // namespace gpipe::internal
