// Tied parameters: parameters that stages in several processes, or on several devices, share.
#ifndef GPIPE_INTERNAL_PROCESSES_TIED_PARAMETERS_H_
#define GPIPE_INTERNAL_PROCESSES_TIED_PARAMETERS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/processes/stage_map.h"

namespace gpipe::internal {

// The parameters that a layer uses, with their names. First come those that it has registered,
// under their names within the layer. Then come parameters of other layers that the layer, or a
// module in it, names (TiedLayer), under an empty name.
std::vector<std::pair<std::string, at::Tensor>> used_parameters(torch::nn::Module& layer);

// A parameter that layers in several places use. A place is a process, or a device of one process.
// Each place has a copy. The first stage owns the parameter, so the optimizer of that stage's
// process updates it. A micro-batch's terms of its gradient go from the last stage to the first.
// Each stage adds its own term.
struct TiedParameter {
  std::string name;  // in the model, where it is registered, as a message shows it
  at::Tensor tensor;
  std::vector<int64_t> stages;  // the stages that use it, ascending
};

// Places are, by stage, the numbers of the places that the stages are in.
using Places = std::vector<int64_t>;
Places places_of(const StageMap& stage_map, size_t stages);   // a stage's place is its process
Places places_of(const std::vector<c10::Device>& of_stages);  // a stage's place is its device

// The tied parameters of a model in the order of its parameters, which is the same in all
// processes. Throws c10::ValueError if the first layer that uses one has not registered it.
std::vector<TiedParameter> tied_parameters_of(const std::vector<std::vector<Layer>>& partitions,
                                              const Places& places);

// Says that the terms of a tied parameter's gradient go from the target stage's place to the source
// stage's.
struct TiedEdge {
  size_t parameter = 0;  // the index of the tied parameter
  int64_t source_stage = 0;
  int64_t target_stage = 0;  // this stage's terms go to the source stage
};
std::vector<TiedEdge> edges_of(const std::vector<TiedParameter>& tied, const Places& places);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_TIED_PARAMETERS_H_
