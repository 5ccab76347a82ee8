#include "gpipe/internal/replicas/forms.h"

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

constexpr int64_t kMessage = 192;  // bytes for a form; each number in it has 20 digits at most

}  // namespace

std::string form_of(const std::vector<at::Tensor>& tensors) {
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

void check_forms(const World& world, const std::string& what,
                 const std::vector<std::string>& forms) {
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const int64_t first = rank % world.processes_each();
    const std::string& here = forms.at(static_cast<size_t>(rank));
    const std::string& there = forms.at(static_cast<size_t>(first));
    if (here == there) continue;
    found_by_all(what + " of the replicas differ: " + there + " on rank " + std::to_string(first) +
                 ", and " + here + " on rank " + std::to_string(rank) +
                 "; the same ones must be frozen (requires_grad) in all replicas, and a layer must "
                 "register what it has when it is made, not in its first forward, which a replica "
                 "without rows does not run");
  }
}

void agree_on_forms(const World& world, const std::string& what,
                    const std::vector<at::Tensor>& tensors) {
  check_forms(world, what,
              exchange_long(*world.processes(), what, form_of(tensors), /*is_patient=*/true));
}

bool have_same_form(const World& world, const std::vector<at::Tensor>& tensors) {
  const auto message = [] { return at::zeros({kMessage}, c10::TensorOptions(c10::kByte)); };
  const std::string form = form_of(tensors);
  const at::Tensor own = message();
  TORCH_INTERNAL_ASSERT(static_cast<int64_t>(form.size()) <= kMessage);
  std::memcpy(own.mutable_data_ptr(), form.data(), form.size());
  std::vector<Processes::Parcel> sends;
  std::vector<Processes::Parcel> receives;
  for (int64_t replica = 0; replica < world.replicas(); ++replica) {
    if (replica == world.replica()) continue;
    const int64_t rank = world.rank_of(replica, world.process());
    sends.push_back({rank, own});
    receives.push_back({rank, message()});
  }
  world.processes()->move(sends, receives);
  return std::all_of(receives.begin(), receives.end(), [&](const Processes::Parcel& parcel) {
    return std::memcmp(parcel.bytes.const_data_ptr(), own.const_data_ptr(), kMessage) == 0;
  });
}

}  // namespace gpipe::internal
