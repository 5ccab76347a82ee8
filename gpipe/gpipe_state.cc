#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/call/between_runs.h"
#include "gpipe/internal/call/call_agreement.h"
#include "gpipe/internal/call/clipping.h"
#include "gpipe/internal/call/hashing.h"
#include "gpipe/internal/call/unscaling.h"
#include "gpipe/internal/model/loading.h"
#include "gpipe/internal/model/remote_layers.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/runtime/exit_gate.h"

namespace gpipe {
using internal::BetweenRuns;

// No process goes on while another one may still fail, because the processes would then no longer
// make the same calls.
void GPipeImpl::agree_on_end(const char* what) const {
  if (processes() == nullptr) return;
  (void)internal::agree_at_end(world_, call_name(what), std::nullopt, /*last=*/0,
                               pipeline_->late_registrations());
}

std::vector<at::Tensor> GPipeImpl::parameters(bool recurse) const {
  std::vector<at::Tensor> all = torch::nn::Module::parameters(recurse);
  std::unordered_set<const c10::TensorImpl*> seen;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const at::Tensor& parameter) {
                             return !seen.insert(parameter.unsafeGetTensorImpl()).second;
                           }),
            all.end());
  return all;
}

std::vector<at::Tensor> GPipeImpl::local_parameters() const {
  return pipeline_ ? pipeline_->local_parameters() : std::vector<at::Tensor>();
}

torch::OrderedDict<std::string, at::Tensor> GPipeImpl::local_named_parameters() const {
  std::unordered_set<const c10::TensorImpl*> local;
  for (const at::Tensor& parameter : local_parameters()) {
    local.insert(parameter.unsafeGetTensorImpl());
  }
  torch::OrderedDict<std::string, at::Tensor> named("Parameter");
  for (const auto& item : named_parameters()) {
    if (local.erase(item.value().unsafeGetTensorImpl()) == 1) {
      named.insert(item.key(), item.value());
    }
  }
  return named;
}

std::string GPipeImpl::parameter_hash() const {
  const internal::WorkScope work;
  return internal::in_call(processes(), [&] {
    check_layers();
    if (processes() != nullptr) {
      internal::agree_on_names(world_, call_name("parameter_hash"), /*arguments=*/"",
                               pipeline_->late_registrations());
    }
    const BetweenRuns between(pipeline_.get());
    torch::OrderedDict<std::string, at::Tensor> named = named_parameters();
    if (processes() != nullptr) {
      // Only the process that owns a tied parameter hashes it, because copies in other processes
      // may still have the values that the last step used.
      std::unordered_set<const c10::TensorImpl*> owned;
      for (const at::Tensor& local : local_parameters()) owned.insert(local.unsafeGetTensorImpl());
      for (auto& parameter : named) {
        if (owned.count(parameter.value().unsafeGetTensorImpl()) != 0) continue;
        parameter.value() = at::Tensor();
      }
    }
    return internal::hash_parameters(named, processes(), call_name("parameter_hash"));
  });
}

void GPipeImpl::materialize(const LayerInit& init) {
  const internal::WorkScope work;
  internal::in_call(processes(), [&] {
    TORCH_CHECK_VALUE(
        init != nullptr,
        "materialize was given an empty function; give one that sets a parameter's values");
    check_layers();
    const uint64_t seed = internal::shared_seed(processes(), call_name("materialize"));
    const BetweenRuns between(pipeline_.get());
    const auto children = named_children();
    size_t index = 0;
    for (size_t j = 0; j < balance_.size(); ++j) {
      const bool here = pipeline_->stage_map().has_stage(static_cast<int64_t>(j));
      for (int64_t k = 0; k < balance_[j]; ++k, ++index) {
        if (!here) continue;
        internal::materialize(*layers_[index], children[index].key() + ".", devices_[j], seed,
                              init);
      }
    }
    on_meta_ = false;
    place_layers();  // moves the tensors of these layers that were not on meta
    agree_on_values("materialize");
    agree_on_end("materialize");
    return true;
  });
}

void GPipeImpl::load(torch::serialize::InputArchive& archive) {
  internal::check_outside_of_pipelines("torch::load into a pipeline");
  TORCH_CHECK_VALUE(world_.processes_each() == 1,
                    "torch::load into a pipeline over several processes: each has a part of the "
                    "layers only; call gpipe::load_checkpoint (gpipe/saving/saving.h) in all of "
                    "them, or load the plain model before the pipeline is made");
  const BetweenRuns between(pipeline_.get());
  {
    const internal::StateBeforeLoad before(*this);
    try {
      internal::check_layers_of(archive, *this);
      try {
        torch::nn::Module::load(archive);
      } catch (const c10::Error&) {
        internal::rethrow_with(std::current_exception(),
                               "nothing was loaded; is the checkpoint of another model?");
      }
      before.check_shapes();
    } catch (...) {
      before.restore();
      place_layers();
      throw;
    }
  }  // frees the old values before layers are placed, which needs the memory
  place_layers();
}

void GPipeImpl::save(torch::serialize::OutputArchive& archive) const {
  internal::check_outside_of_pipelines("torch::save of a pipeline");
  TORCH_CHECK_VALUE(world_.processes_each() == 1,
                    "torch::save of a pipeline over several processes: each has the values of a "
                    "part of the layers only; call gpipe::save_checkpoint (gpipe/saving/saving.h) "
                    "in all of them");
  const BetweenRuns between(pipeline_.get());
  torch::nn::Module::save(archive);
}

double GPipeImpl::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  const internal::WorkScope work;
  return internal::in_call(processes(), [&] {
    check_layers();
    // If the arguments differed, each process would scale its gradients by another factor.
    if (processes() != nullptr) {
      internal::agree_on_names(world_, call_name("clip_grad_norm_"),
                               absl::StrFormat("%.17g, %.17g, %s", max_norm, norm_type,
                                               error_if_nonfinite ? "true" : "false"),
                               pipeline_->late_registrations());
    }
    const BetweenRuns between(pipeline_.get());
    const torch::OrderedDict<std::string, at::Tensor> named = named_parameters();
    const double norm =
        internal::clip_gradients(named.values(), max_norm, norm_type, error_if_nonfinite, world_,
                                 call_name("clip_grad_norm_"), named.keys());
    agree_on_end("clip_grad_norm_");  // because scaling may fail in a single process
    return norm;
  });
}

bool GPipeImpl::unscale_gradients_(double loss_scale) {
  const internal::WorkScope work;
  return internal::in_call(processes(), [&] {
    check_layers();
    if (processes() != nullptr) {
      internal::agree_on_names(world_, call_name("unscale_gradients_"),
                               absl::StrFormat("%.17g", loss_scale),
                               pipeline_->late_registrations());
    }
    const BetweenRuns between(pipeline_.get());
    const bool finite = internal::unscale_gradients(named_parameters().values(), loss_scale, world_,
                                                    call_name("unscale_gradients_"));
    agree_on_end("unscale_gradients_");
    return finite;
  });
}

void GPipeImpl::zero_grad(bool set_to_none) {
  ++zero_grads_;
  torch::nn::Module::zero_grad(set_to_none);
}

}  // namespace gpipe
