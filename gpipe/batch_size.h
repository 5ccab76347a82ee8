// batch_size: how many rows a mini-batch has. All of its tensors must have the same number, except
// those that all micro-batches share.
#ifndef GPIPE_BATCH_SIZE_H_
#define GPIPE_BATCH_SIZE_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe {

// Whether `shared` lists tensor k, so that all micro-batches have it whole
// (GPipeOptions::shared_inputs).
bool is_shared(const std::vector<int64_t>& shared, size_t k);

// The common size of dimension 0 of the defined tensors, except the shared ones. Throws
// c10::ValueError if there is no such tensor, if one has no dimension, if the sizes differ, or if
// a number in `shared` is out of range. `what` names the argument in the message.
int64_t batch_size(const std::vector<at::Tensor>& tensors, const char* what,
                   const std::vector<int64_t>& shared = {});

}  // namespace gpipe

#endif  // GPIPE_BATCH_SIZE_H_
