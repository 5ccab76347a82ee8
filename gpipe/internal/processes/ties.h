// Ties: parameters that stages of several processes, or on several devices, have.
#ifndef GPIPE_INTERNAL_PROCESSES_TIES_H_
#define GPIPE_INTERNAL_PROCESSES_TIES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/processes/residence.h"

namespace gpipe::internal {

// The parameters that a layer uses: those that it has registered, under their names in it, and
// those of others that it or a module in it names (TiedLayer), under none.
std::vector<std::pair<std::string, at::Tensor>> used_parameters(torch::nn::Module& layer);

// A parameter that layers in several places use: processes, or devices of one process. Each of
// these has a copy; the first stage owns it, so the optimizer of its process updates it, where that
// stage is. A micro-batch's terms of its gradient go from the last stage to the first, each of
// which adds its own.
struct Tie {
  std::string name;  // in the model, where it is registered, as a message shows it
  at::Tensor tensor;
  std::vector<int64_t> stages;  // that use it, ascending
};

// [stage] the number of the place where it is.
using Places = std::vector<int64_t>;
Places places_of(const Residence& residence, size_t stages);  // its process
Places places_of(const std::vector<c10::Device>& of_stages);  // its device

// In the order of the model; the same in all processes. Throws c10::ValueError for one that is used
// in another place before a layer has registered it, or that none has.
std::vector<Tie> ties_of(const std::vector<std::vector<Layer>>& partitions, const Places& places);

// Where the terms of a tie leave a place.
struct TieEdge {
  size_t tie = 0;  // number of
  int64_t source_stage = 0;
  int64_t target_stage = 0;  // whose terms the source gets
};
std::vector<TieEdge> edges_of(const std::vector<Tie>& ties, const Places& places);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_TIES_H_
