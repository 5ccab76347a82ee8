// Signatures: what replicas tell each other about their tensors before the bytes of these are
// moved.
#ifndef GPIPE_INTERNAL_REPLICAS_SIGNATURES_H_
#define GPIPE_INTERNAL_REPLICAS_SIGNATURES_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// A text like "12 tensors, 10 of them require a gradient, 4352 bytes, 93218..". The last number is
// a hash of types, shapes and requires_grad, in the order of the tensors.
std::string signature_of(const std::vector<at::Tensor>& tensors);

// Compares the signature of each process with the same process of the other replicas. `signatures`:
// [rank]. If two signatures differ, throws FoundByAll with a message that names both ranks. `what`
// names the tensors in the message.
void check_signatures(const World& world, const std::string& what,
                      const std::vector<std::string>& signatures);

// Exchanges the signatures, and checks them. Called within in_call(), by all processes. It waits
// for each process, however long that process has computed before.
void agree_on_signatures(const World& world, const std::string& what,
                         const std::vector<at::Tensor>& tensors);

// Whether this process has tensors of the same signature in all replicas. These processes call it
// together and find the same. Processes of other stages may still be computing.
bool have_same_signature(const World& world, const std::vector<at::Tensor>& tensors);

// Which tensors are defined in this process of each replica: [replica][tensor]. These processes
// call it together, with as many tensors.
std::vector<std::vector<bool>> exchange_defined(const World& world,
                                                const std::vector<at::Tensor>& tensors);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_SIGNATURES_H_
