#include "gpipe/internal/replicas/signatures.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {
namespace {

constexpr int64_t kMessage = 192;  // bytes for a signature; each number in it has 20 digits at most

at::Tensor zero_bytes(int64_t count) { return at::zeros({count}, c10::TensorOptions(c10::kByte)); }

// What this process of each replica gives, [replica]: as many bytes as `own`, on the host.
std::vector<at::Tensor> given_by_replicas(const World& world, const at::Tensor& own) {
  std::vector<at::Tensor> given;
  std::vector<Processes::Parcel> sends;
  std::vector<Processes::Parcel> receives;
  for (int64_t replica = 0; replica < world.replicas(); ++replica) {
    given.push_back(replica == world.replica() ? own : zero_bytes(own.numel()));
    if (replica == world.replica()) continue;
    const int64_t rank = world.rank_of(replica, world.process());
    sends.push_back({rank, own});
    receives.push_back({rank, given.back()});
  }
  world.processes()->move(sends, receives);
  return given;
}

}  // namespace

std::string signature_of(const std::vector<at::Tensor>& tensors) {
  std::string text;
  size_t bytes = 0;
  size_t trained = 0;
  for (const at::Tensor& tensor : tensors) {
    const bool is_trained = tensor.requires_grad();
    text += c10::str(tensor.dtype(), tensor.sizes(), is_trained ? "" : "frozen");
    bytes += tensor.nbytes();
    trained += is_trained;
  }
  // The hash is the same in all processes, because they have the same build.
  return c10::str(tensors.size(), " tensors, ", trained, " of them require a gradient, ", bytes,
                  " bytes, ", std::hash<std::string>()(text));
}

void check_signatures(const World& world, const std::string& what,
                      const std::vector<std::string>& signatures) {
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const int64_t first = rank % world.processes_each();
    const std::string& here = signatures.at(static_cast<size_t>(rank));
    const std::string& there = signatures.at(static_cast<size_t>(first));
    if (here == there) continue;
    found_by_all(what + " of the replicas differ: " + there + " on rank " + std::to_string(first) +
                 ", and " + here + " on rank " + std::to_string(rank) +
                 "; the same ones must be frozen (requires_grad) in all replicas, and a layer must "
                 "register what it has when it is made, not in its first forward, which a replica "
                 "without rows does not run");
  }
}

void agree_on_signatures(const World& world, const std::string& what,
                         const std::vector<at::Tensor>& tensors) {
  check_signatures(
      world, what,
      exchange_long(*world.processes(), what, signature_of(tensors), /*is_patient=*/true));
}

bool have_same_signature(const World& world, const std::vector<at::Tensor>& tensors) {
  const std::string signature = signature_of(tensors);
  TORCH_INTERNAL_ASSERT(static_cast<int64_t>(signature.size()) <= kMessage);
  const at::Tensor own = zero_bytes(kMessage);
  std::memcpy(own.mutable_data_ptr(), signature.data(), signature.size());
  const std::vector<at::Tensor> of_all = given_by_replicas(world, own);
  return std::all_of(of_all.begin(), of_all.end(), [&](const at::Tensor& bytes) {
    return std::memcmp(bytes.const_data_ptr(), own.const_data_ptr(), kMessage) == 0;
  });
}

std::vector<std::vector<bool>> exchange_defined(const World& world,
                                                const std::vector<at::Tensor>& tensors) {
  const auto count = static_cast<int64_t>(tensors.size());
  const at::Tensor own = zero_bytes(count);
  for (int64_t k = 0; k < count; ++k) {
    own.mutable_data_ptr<uint8_t>()[k] = tensors[static_cast<size_t>(k)].defined() ? 1 : 0;
  }
  std::vector<std::vector<bool>> defined;
  for (const at::Tensor& bytes : given_by_replicas(world, own)) {
    const auto* const first = bytes.const_data_ptr<uint8_t>();
    defined.emplace_back(first, first + count);
  }
  return defined;
}

}  // namespace gpipe::internal
