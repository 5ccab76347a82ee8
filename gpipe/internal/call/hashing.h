// Hashing: one number for the bits of all parameters, also where they are in several processes.
#ifndef GPIPE_INTERNAL_CALL_HASHING_H_
#define GPIPE_INTERNAL_CALL_HASHING_H_

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <string>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {

// Returns 16 hexadecimal digits, a hash of names, types, shapes and values in the order of the
// list. With `processes`, each has the values of some of the parameters, and the others on meta or
// undefined; the list is the same everywhere, and so is the result. It finds differences; it is not
// a signature. Throws FoundByAll with a c10::ValueError that names a parameter whose values differ
// between two processes; in replicas they must be equal.
std::string hash_parameters(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                            Processes* processes, const std::string& name);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_HASHING_H_
