#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/call/model_checks.h"
#include "text/shown.h"

namespace gpipe {

void GPipeImpl::check_world(const GPipeOptions& options) const {
  TORCH_CHECK_VALUE(!balance_.empty(), "a model without layers has no stages to spread over ",
                    world_.size(),
                    " processes; give it a layer for each, or leave GPipeOptions::world out");
  internal::check_replicas(options);
  TORCH_CHECK_VALUE(!options.graphs(),
                    "GPipeOptions::graphs are for a pipeline in one process: over several ones "
                    "packets go by way of the host, which no graph can replay");
  const int64_t workers = placement().workers();
  const int64_t each = world_.processes_each();
  TORCH_CHECK_VALUE(
      placement_.has_value() || workers == each || each == 1, "the balance has ", workers,
      " partitions, and there are ", each, " processes",
      world_.replicas() > 1 ? " in each replica" : "",
      ": say with GPipeOptions::placement which stages are in which process (Placement::loop(",
      each, ", v), or Placement::one_each(", workers, ").processes({...})), or give a balance of ",
      each, " partitions");
}

void GPipeImpl::check_layers() const {
  constexpr char kHint[] =
      " after the pipeline was made, which runs the layers that it was made of. Make a new "
      "pipeline "
      "of a Sequential with the layers that are to run (a module inside a layer may be replaced)";
  const std::vector<std::shared_ptr<torch::nn::Module>> now = children();
  if (now != layers_) {
    const auto named = named_children();
    for (size_t k = 0; k < layers_.size(); ++k) {
      TORCH_CHECK_VALUE(k < named.size() && named[k].value() == layers_[k], "layer ", k, " of the ",
                        "pipeline was replaced or unregistered",
                        k < named.size()
                            ? absl::StrCat(" (there is ", text::in_quotes(named[k].key()), " now)")
                            : "",
                        kHint);
    }
    TORCH_CHECK_VALUE(false, "the module ", text::in_quotes(named[layers_.size()].key()),
                      " was registered in the pipeline", kHint);
  }
  const auto parameters = named_parameters(/*recurse=*/false);
  TORCH_CHECK_VALUE(parameters.is_empty(), "the parameter ", text::in_quotes(parameters[0].key()),
                    " was registered in the pipeline itself, and no layer uses it; register it in "
                    "the layer that does");
  const auto buffers = named_buffers(/*recurse=*/false);
  TORCH_CHECK_VALUE(buffers.is_empty(), "the buffer ", text::in_quotes(buffers[0].key()),
                    " was registered in the pipeline itself, and no layer uses it; register it in "
                    "the layer that does");
}

// Such a tensor is refused over replicas, because each replica would propagate only its own part of
// the gradient into the graph that has computed the tensor.
void GPipeImpl::check_no_way_behind(const char* what, size_t number, const at::Tensor& tensor,
                                    bool needs_record) const {
  TORCH_CHECK_VALUE(
      world_.replicas() == 1 || !needs_record || !tensor.requires_grad() || tensor.is_leaf(), what,
      " ", number,
      " was computed from a tensor that requires a gradient, of which each replica "
      "would get its own part; compute it in the model's layers, or detach() it");
}

Tensors GPipeImpl::cut_inputs(const char* what, const Tensors& inputs, bool needs_record) const {
  Tensors cut = inputs;
  for (const int64_t number : shared_inputs_) {
    if (inputs.empty()) continue;  // this process does not need inputs
    TORCH_CHECK_VALUE(number < static_cast<int64_t>(inputs.size()), what, " was given ",
                      inputs.size(), " input tensors, and GPipeOptions::shared_inputs names input ",
                      number, "; they are counted from 0");
    const at::Tensor& input = inputs[number];
    TORCH_CHECK_VALUE(
        world_.replicas() == 1 || !needs_record || !input.defined() || !input.requires_grad(),
        "input ", number,
        " is the same for all micro-batches (GPipeOptions::shared_inputs) and "
        "requires a gradient, of which each replica would get its own part; make it "
        "a parameter of the model");
    cut[number] = at::Tensor();
  }
  return cut;
}

}  // namespace gpipe
