#include "gpipe/stage_memory.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <set>

#include "gpipe/internal/threads/stage_work.h"
#include "interception/peak_memory.h"

namespace gpipe {
namespace {

const std::vector<c10::Device>& checked_devices(const GPipe& pipe) {
  for (size_t j = 0; j < pipe->devices().size(); ++j) {
    const c10::Device device = pipe->devices()[j];
    TORCH_CHECK_VALUE(device.is_cpu() || device.is_cuda(),
                      "StageMemory counts memory on the CPU and on CUDA devices, but stage ", j,
                      " is on ", device, "; put it there, or do without StageMemory");
  }
  return pipe->devices();
}

// The stage that a block belongs to which this thread takes on `device`; kNoPart if the block
// belongs to the device only. `devices`: [stage].
int64_t stage_of_block(const void* pipeline, const std::vector<c10::Device>& devices,
                       c10::Device device) {
  constexpr int64_t kNone = internal::PeakMemory::kNoPart;
  const internal::StageWork* const work = internal::StageWork::current();
  if (work == nullptr || work->id().pipeline != pipeline) return kNone;
  if (devices[static_cast<size_t>(work->id().stage)] == device) return work->id().stage;
  int64_t only = kNone;
  for (size_t j = 0; j < devices.size(); ++j) {
    if (devices[j] != device) continue;
    if (only != kNone) return kNone;
    only = static_cast<int64_t>(j);
  }
  return only;
}

}  // namespace

StageMemory::StageMemory(const GPipe& pipe)
    : pipe_(pipe),
      memory_(std::make_unique<internal::PeakMemory>(
          checked_devices(pipe), static_cast<int64_t>(pipe->devices().size()),
          [pipeline = pipe->pipeline(), devices = pipe->devices()](c10::Device device) {
            return stage_of_block(pipeline, devices, device);
          })) {}

StageMemory::~StageMemory() = default;

void StageMemory::reset() { memory_->reset(); }

std::vector<StagePeak> StageMemory::stages() const {
  std::vector<StagePeak> peaks;
  std::set<const c10::StorageImpl*> known;  // a tied weight counts in its first stage
  int64_t layer = 0;
  for (size_t j = 0; j < pipe_->devices().size(); ++j) {
    StagePeak peak{static_cast<int64_t>(j), pipe_->devices()[j]};
    peak.taken = memory_->of_part(peak.stage);
    const auto add = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) {
        if (!tensor.defined() || !tensor.has_storage()) continue;
        const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
        if (known.insert(storage).second) peak.model += static_cast<int64_t>(storage->nbytes());
      }
    };
    for (int64_t k = 0; k < pipe_->balance()[j]; ++k, ++layer) {
      add((*pipe_)[layer]->parameters());
      add((*pipe_)[layer]->buffers());
    }
    peaks.push_back(peak);
  }
  return peaks;
}

std::vector<DevicePeak> StageMemory::devices() const {
  std::vector<DevicePeak> peaks;
  for (const c10::Device device : memory_->devices()) {
    peaks.push_back({device, memory_->allocated(device), memory_->reserved(device)});
  }
  return peaks;
}

}  // namespace gpipe
