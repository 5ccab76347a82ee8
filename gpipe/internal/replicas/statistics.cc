#include "gpipe/internal/replicas/statistics.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/replicas/forms.h"
#include "gpipe/internal/replicas/packing.h"

namespace gpipe::internal {
namespace {

using Parcel = Processes::Parcel;

at::Tensor room_of(int64_t bytes) { return at::empty({bytes}, c10::TensorOptions(c10::kByte)); }

at::Tensor bytes_of(const std::vector<double>& numbers) {
  at::Tensor bytes = room_of(static_cast<int64_t>(numbers.size() * sizeof(double)));
  if (!numbers.empty()) std::memcpy(bytes.mutable_data_ptr(), numbers.data(), bytes.nbytes());
  return bytes;
}

std::vector<double> numbers_of(const at::Tensor& bytes) {
  std::vector<double> numbers(bytes.nbytes() / sizeof(double));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.const_data_ptr(), bytes.nbytes());
  return numbers;
}

// Sends the updates that the other replicas have logged to the same process of the first replica.
void gather(const World& world, std::vector<StatisticsLog>& stages,
            const std::vector<at::Tensor>& buffers) {
  const bool first = world.replica() == 0;
  const at::Tensor own =
      bytes_of(first ? std::vector<double>() : StatisticsLog::to_numbers(stages, buffers));
  std::vector<int64_t> sizes;  // [rank]
  std::vector<std::string> forms;
  for (const std::string& text :
       exchange_long(*world.processes(), "the sizes of the norms' statistics",
                     std::to_string(own.numel()) + " " + form_of(buffers),
                     /*is_patient=*/true)) {
    const size_t space = text.find(' ');
    sizes.push_back(std::stoll(text.substr(0, space)));
    forms.push_back(text.substr(space + 1));
  }
  check_forms(world, "the buffers", forms);
  std::vector<Parcel> sends;
  std::vector<Parcel> receives;
  if (own.numel() > 0) sends.push_back({world.process(), own});
  for (int64_t replica = 1; first && replica < world.replicas(); ++replica) {
    const int64_t rank = world.rank_of(replica, world.process());
    const int64_t bytes = sizes.at(static_cast<size_t>(rank));
    if (bytes > 0) receives.push_back({rank, room_of(bytes)});
  }
  world.processes()->move(sends, receives);
  for (const Parcel& parcel : receives) {
    StatisticsLog::add_numbers(stages, buffers, numbers_of(parcel.bytes));
  }
}

// Gives the updated buffers of the first replica to the others. `updated`: [buffer]; only the first
// replica has it.
void share(const World& world, const std::vector<at::Tensor>& buffers,
           const std::vector<bool>& updated) {
  Bucket all(buffers.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const Packing packing(buffers, all);
  std::vector<Parcel> sends;
  std::vector<Parcel> receives;
  if (world.replica() > 0) {
    receives.push_back({world.process(), room_of(packing.bytes())});
  } else {
    std::vector<at::Tensor> news(buffers.size());
    for (size_t k = 0; k < buffers.size(); ++k) {
      if (updated[k]) news[k] = buffers[k];
    }
    const at::Tensor message = packing.pack(news);
    for (int64_t replica = 1; replica < world.replicas(); ++replica) {
      sends.push_back({world.rank_of(replica, world.process()), message});
    }
  }
  world.processes()->move(sends, receives);
  if (receives.empty()) return;
  const std::vector<at::Tensor> values = packing.unpack(receives.front().bytes);
  for (size_t k = 0; k < buffers.size(); ++k) {
    if (!values[k].defined()) continue;
    at::Tensor buffer = buffers[k];
    buffer.copy_(values[k]);
  }
}

}  // namespace

void commit_over_replicas(const World& world, std::vector<StatisticsLog>& stages,
                          const std::vector<at::Tensor>& buffers) {
  const c10::NoGradGuard no_grad;
  gather(world, stages, buffers);
  std::vector<bool> updated;
  if (world.replica() == 0) {
    updated = StatisticsLog::updated(stages, buffers);
    StatisticsLog::commit(stages);
  } else {
    stages = std::vector<StatisticsLog>(stages.size());
  }
  share(world, buffers, updated);
}

}  // namespace gpipe::internal
