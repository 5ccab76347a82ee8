// TiedTerms: the terms of tied parameters' gradients that stages send each other, beside the
// gradients of what travels between layers.
#ifndef GPIPE_INTERNAL_STAGE_TIED_TERMS_H_
#define GPIPE_INTERNAL_STAGE_TIED_TERMS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/leaf_sums.h"
#include "gpipe/internal/boundary/ports.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

// Thread-safety: none; only one thread at a time works on a stage.
class TiedTerms {
 public:
  // `tied`: the parameters that several processes or devices share; the ports name them by their
  // indices in it. `over_processes`: whether some stages are in other processes.
  TiedTerms(int64_t stage, c10::Device device, std::vector<at::Tensor> tied, bool over_processes)
      : stage_(stage), device_(device), tied_(std::move(tied)), over_processes_(over_processes) {}

  // Adds the terms that later stages have sent to `sums`, and removes them from `gradients`.
  void take(const RunContext& run, const Ports& ports, std::vector<Packet>& gradients,
            LeafSums& sums) const;
  // Appends packets with the terms that earlier stages get, and removes these terms from `sums`.
  // Throws c10::ValueError for a sparse gradient that would go to another process.
  void send(const RunContext& run, const Ports& ports, std::vector<Packet>& gradients,
            LeafSums& sums) const;

 private:
  void check_dense(const RunContext& run, const at::Tensor& tied, const at::Tensor& sum) const;

  int64_t stage_;
  c10::Device device_;
  std::vector<at::Tensor> tied_;
  bool over_processes_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_TIED_TERMS_H_
