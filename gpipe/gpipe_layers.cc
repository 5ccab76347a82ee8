#include <c10/util/Exception.h>

#include <algorithm>
#include <ostream>
#include <unordered_set>

#include "gpipe/gpipe.h"
#include "gpipe/internal/call/between_runs.h"
#include "gpipe/internal/call/model_checks.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/pipeline.h"
#include "text/counted.h"

namespace gpipe {
namespace {

[[noreturn]] void refuse_move(c10::Device device) {
  TORCH_CHECK_TYPE(
      false, "a pipeline cannot be moved to ", device,
      ": each partition lives on its own device; give other devices in GPipeOptions and "
      "make a new pipeline");
}

}  // namespace

const std::shared_ptr<torch::nn::Module>& GPipeImpl::operator[](int64_t index) const {
  const int64_t count = static_cast<int64_t>(layers_.size());
  TORCH_CHECK_INDEX(index >= -count && index < count, "layer ", index,
                    " does not exist: the pipeline has ", count,
                    " layers; they are numbered from 0, and from -1 backwards");
  return layers_[index < 0 ? index + count : index];
}

bool GPipeImpl::is_here(int64_t layer) const {
  (void)(*this)[layer];  // throws if there is no such layer
  int64_t left = layer < 0 ? layer + static_cast<int64_t>(layers_.size()) : layer;
  int64_t stage = 0;
  while (left >= balance_[static_cast<size_t>(stage)]) {
    left -= balance_[static_cast<size_t>(stage++)];
  }
  return pipeline_->stage_map().has_stage(stage);
}

torch::nn::Sequential GPipeImpl::sequential() const {
  TORCH_CHECK_VALUE(world_.processes_each() == 1,
                    "sequential() of a pipeline over several processes would have the values of a "
                    "part of the layers only; call gpipe::save_checkpoint (gpipe/saving/saving.h) "
                    "in all of them, and load it into a pipeline in one");
  check_layers();
  torch::nn::Sequential plain;
  size_t index = 0;
  for (const auto& child : named_children()) {
    plain->push_back(child.key(), callable_layers_[index++]);
  }
  return plain;
}

Routes GPipeImpl::routes() const { return pipeline_ ? pipeline_->routes() : Routes::create(1); }

std::optional<Failure> GPipeImpl::last_failure() const {
  return pipeline_ ? pipeline_->last_failure() : std::nullopt;
}

std::vector<GraphUse> GPipeImpl::graph_use() const {
  internal::check_outside_of_pipelines("graph_use");
  const internal::BetweenRuns between(pipeline_.get());
  return pipeline_ ? pipeline_->graph_use() : std::vector<GraphUse>();
}

void GPipeImpl::to(torch::Device device, torch::Dtype, bool) { refuse_move(device); }
void GPipeImpl::to(torch::Device device, bool) { refuse_move(device); }
void GPipeImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
}

void GPipeImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::GPipe(balance=" << internal::list_text(balance_) << ", devices={";
  for (size_t j = 0; j < devices_.size(); ++j) stream << (j == 0 ? "" : ", ") << devices_[j];
  stream << "}, chunks=" << chunks_ << ", checkpoint=";
  const auto& modes = partition_checkpoints_;
  if (std::all_of(modes.begin(), modes.end(), [&](Checkpoint m) { return m == checkpoint_; })) {
    stream << to_text(checkpoint_) << ")";
  } else {
    stream << "{";
    for (size_t j = 0; j < modes.size(); ++j) stream << (j == 0 ? "" : ", ") << to_text(modes[j]);
    stream << "})";
  }
  // Below these lines LibTorch prints the layers, with all that is in them.
  size_t first = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (size_t j = 0; j < balance_.size(); ++j) {
    const size_t end = first + static_cast<size_t>(balance_[j]);
    int64_t parameters = 0;
    for (size_t k = first; k < end; ++k) {
      for (const at::Tensor& parameter : layers_[k]->parameters()) {
        if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters += parameter.numel();
      }
    }
    stream << "\n  partition " << j << " on " << devices_[j];
    if (processes() != nullptr) {
      stream << " in process " << pipeline_->stage_map().process_of_stage(static_cast<int64_t>(j));
    }
    stream << ": ";
    if (end - first == 1) {
      stream << "layer " << first;
    } else {
      stream << "layers " << first << " to " << end - 1;
    }
    stream << ", " << text::counted(parameters, "parameter");
    first = end;
  }
}

}  // namespace gpipe
