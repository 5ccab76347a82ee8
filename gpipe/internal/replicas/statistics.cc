#include "gpipe/internal/replicas/statistics.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/replicas/packing.h"
#include "gpipe/internal/replicas/signatures.h"
#include "gpipe/internal/tensors/brought_to.h"
#include "gpipe/internal/tensors/byte_tensor.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::internal {
namespace {

using Parcel = Processes::Parcel;

// What a rank says before it sends its updates.
struct Announcement {
  int64_t numbers = 0;  // bytes of the message with the numbers; 0: there are no updates
  int64_t moments = 0;
  std::string signature;  // of the buffers
};
auto fields(Announcement& each) { return std::tie(each.numbers, each.moments, each.signature); }

at::Tensor moments_of(int64_t count, c10::Device device) {
  return at::empty({count}, c10::TensorOptions(c10::kDouble).device(device));
}

// Sends the updates that the other replicas have logged to the same process of the first replica.
void gather(const World& world, c10::Device device, std::vector<StatisticsLog>& stages,
            const std::vector<at::Tensor>& buffers) {
  const bool first = world.replica() == 0;
  StatisticsLog::Updates own{{}, moments_of(0, device)};
  if (!first) own = StatisticsLog::updates(stages, buffers, device);
  const std::string what = "the sizes of the norms' statistics";
  const std::string message = own.numbers.empty() ? "" : to_bytes(own.numbers);
  const Announcement here{static_cast<int64_t>(message.size()), own.moments.numel(),
                          signature_of(buffers)};
  std::vector<Announcement> announced;  // [rank]
  std::vector<std::string> signatures;
  for (const std::string& bytes :
       exchange_long(*world.processes(), what, to_bytes(here), /*is_patient=*/true)) {
    announced.push_back(from_bytes<Announcement>(bytes, what));
    signatures.push_back(announced.back().signature);
  }
  check_signatures(world, "the buffers", signatures);
  std::vector<Parcel> sends;
  std::vector<Parcel> receives;
  if (!message.empty()) {
    sends.push_back({world.process(), tensor_of_bytes(message)});
    if (own.moments.numel() > 0) {
      const at::Tensor on_host = brought_to(c10::kCPU, {own.moments}).front();
      sends.push_back({world.process(), on_host.view(c10::kByte)});
    }
  }
  std::vector<at::Tensor> numbers;  // [replica that has some]
  std::vector<at::Tensor> moments;  // the same
  for (int64_t replica = 1; first && replica < world.replicas(); ++replica) {
    const int64_t rank = world.rank_of(replica, world.process());
    const Announcement& theirs = announced.at(static_cast<size_t>(rank));
    if (theirs.numbers == 0) continue;
    numbers.push_back(new_bytes(theirs.numbers));
    moments.push_back(moments_of(theirs.moments, c10::kCPU));
    receives.push_back({rank, numbers.back()});
    if (theirs.moments > 0) receives.push_back({rank, moments.back().view(c10::kByte)});
  }
  world.processes()->move(sends, receives);
  moments = brought_to(device, moments);
  for (size_t k = 0; k < numbers.size(); ++k) {
    StatisticsLog::add(stages, buffers,
                       {from_bytes<std::vector<double>>(bytes_in(numbers[k])), moments[k]});
  }
}

// Gives the updated buffers of the first replica to the others. `updated`: [buffer]; only the first
// replica has it.
void share(const World& world, c10::Device device, const std::vector<at::Tensor>& buffers,
           const std::vector<bool>& updated) {
  if (buffers.empty()) return;
  Bucket all(buffers.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const Packing packing(buffers, all);
  std::vector<at::Tensor> news(buffers.size());
  for (size_t k = 0; k < updated.size(); ++k) {
    if (updated[k]) news[k] = buffers[k];
  }
  const std::vector<bool> changed = exchange_defined(world, news).front();
  if (std::find(changed.begin(), changed.end(), true) == changed.end()) return;
  if (world.replica() == 0) {
    const at::Tensor message = brought_to(c10::kCPU, {packing.pack(news, device)}).front();
    std::vector<Parcel> sends;
    for (int64_t replica = 1; replica < world.replicas(); ++replica) {
      sends.push_back({world.rank_of(replica, world.process()), message});
    }
    return world.processes()->move(sends, {});
  }
  const at::Tensor message = new_bytes(packing.bytes());
  world.processes()->move({}, {{world.process(), message}});
  const std::vector<at::Tensor> values =
      packing.unpack(brought_to(device, {message}).front(), changed);
  for (size_t k = 0; k < buffers.size(); ++k) {
    at::Tensor buffer = buffers[k];
    if (values[k].defined()) buffer.copy_(values[k]);
  }
}

}  // namespace

void commit_over_replicas(const World& world, std::vector<StatisticsLog>& stages,
                          const std::vector<at::Tensor>& buffers) {
  const c10::NoGradGuard no_grad;
  // Not over links: if another process fails, what they bring is garbage, and it would be in the
  // buffers before this process knows of the failure. Nothing repairs a buffer.
  const c10::Device device = device_of(buffers);
  gather(world, device, stages, buffers);
  std::vector<bool> updated;
  if (world.replica() == 0) {
    updated = StatisticsLog::updated(stages, buffers);
    StatisticsLog::commit(stages);
  } else {
    stages = std::vector<StatisticsLog>(stages.size());
  }
  share(world, device, buffers, updated);
}

}  // namespace gpipe::internal
