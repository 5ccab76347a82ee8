// Bridge: how a pipeline's output stands in the caller's autograd graph.
//
// Two nodes. The output node belongs to the outputs: it only takes their gradients and hands on a
// one-element CPU tensor. The input node, which gets that tensor, runs the backward half on the
// workers and waits. Autograd runs a node on the thread of its gradient's device; a node that
// waited on a CUDA device's thread would keep the workers' own backward from that thread for ever.
// With the way over the CPU it waits on the thread that called backward.
#ifndef GPIPE_INTERNAL_BRIDGE_H_
#define GPIPE_INTERNAL_BRIDGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gpipe::internal {

class Pipeline;
struct Pass;

// Makes the outputs of `pass` that want a gradient (see Item::needs_grad) require one, such that a
// backward from them runs the pipeline's backward half and goes on to `inputs`, the caller's own.
// The pass lives as long as the outputs' graph. A backward throws c10::Error if the pipeline is
// gone, if it is the second one without retain_graph, if it was asked to create a graph, if it runs
// inside a layer or loss of a pipeline, or if a recompute would not see what the forward saw.
// Several threads may run backward through the same outputs: they follow one another.
void attach_bridge(const std::shared_ptr<Pipeline>& pipeline, std::unique_ptr<Pass> pass,
                   const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                   const std::vector<bool>& needs_grad);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BRIDGE_H_
