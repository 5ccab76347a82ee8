// Bridge: two nodes that stand for the whole pipeline in the caller's autograd graph.
//
// The output node belongs to the outputs. It only takes their gradients and passes on a one-element
// CPU tensor. The input node gets that tensor, runs the backward half on the workers and waits.
// Autograd runs a node on the thread of its gradient's device. A node that waited on a CUDA
// device's thread would block that thread for the workers' own backward forever. Because of the CPU
// tensor, the input node waits on the thread that called backward.
#ifndef GPIPE_INTERNAL_CALL_BRIDGE_H_
#define GPIPE_INTERNAL_CALL_BRIDGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gpipe::internal {

class Pipeline;
struct Pass;

// Makes the outputs of `pass` that need a gradient (see Item::needs_grad) require one. A backward
// from them runs the pipeline's backward half and goes on to `inputs`, the caller's own tensors.
// The pass lives as long as the outputs' graph.
//
// Thread-safety: several threads may run backward through the same outputs; they follow one
// another.
//
// Throws: a backward throws c10::Error if the pipeline is gone, if it is the second one without
// retain_graph, if an earlier one failed in its run, if it was asked to create a graph, if it runs
// inside a layer or loss of a pipeline, if a parameter was given a hook since the forward, or if a
// recompute would not see what the forward saw.
void attach_bridge(const std::shared_ptr<Pipeline>& pipeline, std::unique_ptr<Pass> pass,
                   const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                   const std::vector<bool>& needs_grad);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_BRIDGE_H_
