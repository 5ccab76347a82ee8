#include "gpipe/internal/offload/stage_offloads.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {
namespace {

constexpr bool kAtOnce = true;  // the argument `non_blocking` of copies from and to pinned memory

// On meta nothing is copied, but all memory is given up and taken, so that a plan counts what a run
// takes. What would be pinned memory is on the meta device with this index. No stage is there: it
// is the first number above meta/meta_devices.h's.
constexpr c10::DeviceIndex kPinnedOnMeta = 127;

const char* const kAway =
    "this tensor's memory is on the host: the schedule offloads what the graph of a micro-batch "
    "holds, from its forward to its backward, and something else has kept the tensor and uses it "
    "meanwhile where no operator of the stage's layers is called with it (another stage or thread, "
    "or by its address); let it copy the values into a registered buffer, which stays on the "
    "device, or use a schedule without offloads";

c10::Allocator* allocator_of(const c10::StorageImpl& storage) {
  const c10::Allocator* const own = storage.allocator();
  return own != nullptr ? const_cast<c10::Allocator*>(own)
                        : c10::GetAllocator(storage.device_type());
}

// What differs from one block of memory to another: its address. A block on meta has none.
const void* place_of(const c10::StorageImpl& storage) {
  return storage.device_type() == c10::kMeta ? storage.data_ptr().get_context() : storage.data();
}

// Calls visit(tensor) for each tensor that has memory of its own: for the parts of sparse ones.
template <typename Visit>
void for_each_part(const std::vector<at::Tensor>& tensors, const Visit& visit) {
  for (const at::Tensor& tensor : tensors) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    if (const auto* const sparse = dynamic_cast<const at::SparseTensorImpl*>(impl)) {
      visit(sparse->indices());
      visit(sparse->values());
    } else if (const auto* const rows = dynamic_cast<const at::SparseCsrTensorImpl*>(impl)) {
      visit(rows->compressed_indices());
      visit(rows->plain_indices());
      visit(rows->values());
    } else {
      visit(tensor);
    }
  }
}

// Grows with each change that one of them counts.
uint64_t sum_of(const std::vector<c10::VariableVersion>& counters) {
  uint64_t sum = 0;
  for (const c10::VariableVersion& counter : counters) {
    if (counter.enabled()) sum += counter.current_version();
  }
  return sum;
}

}  // namespace

bool has_offloads(const Schedule& schedule) {
  return std::any_of(schedule.table().begin(), schedule.table().end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return !computes(action.kind); });
  });
}

std::unique_ptr<MadeMemory::Scope> note_made(const Offloads* offloads, int64_t stage,
                                             int64_t micro_batch) {
  if (offloads == nullptr || (*offloads)[stage] == nullptr) return nullptr;
  return (*offloads)[stage]->note(micro_batch);
}

StageOffloads::StageOffloads(c10::Device device)
    : device_(device),
      to_host_(take_stream_for_copies(device)),
      to_device_(take_stream_for_copies(device)),
      watched_(seen_here()) {}

StageOffloads::~StageOffloads() {
  end_run();
  give_back_stream_for_copies(to_host_);
  give_back_stream_for_copies(to_device_);
}

void StageOffloads::begin_run(int64_t stage, const Schedule& schedule) {
  stage_ = current_stream(device_);
  cells_.clear();
  cells_.reserve(schedule.micro_batches());
  for (int64_t i = 0; i < schedule.micro_batches(); ++i) cells_.emplace_back(seen_here());
  used_before_ = std::exchange(used_, {});
  most_away_ = 0;
  int64_t away = 0;
  std::vector<ActionKind> last(cells_.size());
  for (const Action& action : schedule.actions(schedule.worker_of(stage))) {
    if (action.stage != stage) continue;
    if (computes(action.kind)) last[action.micro_batch] = action.kind;
    // A copy begins before its offload.
    if (action.kind == ActionKind::kOffload) {
      cells_[action.micro_batch].after = last[action.micro_batch];
      most_away_ = std::max(most_away_, ++away + 1);
    }
    if (action.kind == ActionKind::kReload) --away;
  }
  most_away_ = std::min<int64_t>(most_away_, schedule.micro_batches());
}

std::unique_ptr<MadeMemory::Scope> StageOffloads::note(int64_t micro_batch) {
  Cell& cell = cells_[micro_batch];
  if (cell.after) return std::make_unique<MadeMemory::Scope>(cell.made);
  if (origins_.empty()) return nullptr;
  watched_.forget();
  return std::make_unique<MadeMemory::Scope>(watched_);
}

MadeMemory StageOffloads::seen_here() {
  return {device_, [this](const c10::StorageImpl* other) { keep_here(other); }};
}

// What the cell has made and may go. From now on, what other cells are given of it stays.
std::vector<MadeMemory::Made> StageOffloads::movable(int64_t micro_batch) {
  std::vector<MadeMemory::Made> found;
  for (MadeMemory::Made& made : cells_[micro_batch].made.held()) {
    if (!may_go(*made.storage)) continue;
    const Place place(micro_batch, made.number);
    const auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>(made.storage);
    origins_.try_emplace(made.storage.get(), Origin{weak, place});
    if (!used_.contains(place) && !used_before_.contains(place)) found.push_back(std::move(made));
  }
  return found;
}

// A cell is about to use what may be another one's.
void StageOffloads::keep_here(const c10::StorageImpl* storage) {
  const std::lock_guard<std::mutex> lock(keeping_);
  const auto found = origins_.find(storage);
  if (found == origins_.end()) return;
  const Place place = found->second.place;
  used_.insert(place);
  origins_.erase(found);
  Cell& cell = cells_[place.first];
  for (Moving& each : cell.moving) {
    if (each.storage.get() == storage) bring_back(cell, each);
  }
}

void StageOffloads::bring_back(const Cell& cell, Moving& moving) {
  // The operator that needs it is being called: in any mode, and perhaps on another stream.
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const c10::InferenceMode outside(false);
  const c10::NoGradGuard no_grad;
  const c10::Stream operators = current_stream(device_);
  const StreamScope scope(*stage_);
  if (!moving.away) {
    wait_for_event(*cell.copied, *stage_);  // the operator may write
  } else {
    if (!moving.memory) {
      try {
        moving.memory = memory_for(moving);
      } catch (const c10::OutOfMemoryError& error) {  // the operator will say so
        moving.storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
            std::string(kAway) + ". It could not come back: " + error.what_without_backtrace());
        return;
      }
      follow(to_device_, *stage_);
      begin_copy_back(moving);
    }
    follow(*stage_, to_device_);
    give_memory(moving);
  }
  follow(operators, *stage_);
  moving.storage.reset();  // its block is given back with the cell's others
}

// Memory for what is away; the next two functions fill it, and make it the storage's.
StoragePtr StageOffloads::memory_for(const Moving& moving) const {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               static_cast<int64_t>(moving.size),
                                               allocator_of(*moving.storage), /*resizable=*/false);
}

void StageOffloads::begin_copy_back(const Moving& moving) const {
  if (device_.is_meta()) return;
  const StreamScope scope(to_device_);
  bytes_of(moving.memory, moving.size)
      .copy_(moving.block.bytes.narrow(0, 0, static_cast<int64_t>(moving.size)), kAtOnce);
}

void StageOffloads::give_memory(Moving& moving) const {
  moving.storage->clear_data_ptr_access_error_msg_();
  moving.storage->set_data_ptr_noswap(moving.memory->set_data_ptr(c10::DataPtr(nullptr, device_)));
  moving.memory.reset();
  moving.away = false;
}

bool StageOffloads::may_go(const c10::StorageImpl& storage) const {
  if (storage.device() != device_ || storage.throw_on_immutable_data_ptr()) return false;
  if (storage.nbytes() < kLeastBytes || place_of(storage) == nullptr) return false;
  if (device_.is_meta()) return true;
  // Memory that its allocator has not given, such as another storage's, is not its own.
  const c10::DeleterFnPtr deleter = allocator_of(storage)->raw_deleter();
  return deleter != nullptr && storage.data_ptr().get_deleter() == deleter;
}

bool StageOffloads::is_unchanged(const Moving& moving) const {
  const c10::StorageImpl& storage = *moving.storage;
  return may_go(storage) && storage.nbytes() == moving.size &&
         place_of(storage) == moving.address && sum_of(moving.counters) == moving.changes;
}

at::Tensor StageOffloads::bytes_of(const StoragePtr& storage, size_t size) const {
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device_));
  bytes.set_(c10::Storage(storage), 0, {static_cast<int64_t>(size)}, {1});
  return bytes;
}

StageOffloads::Block StageOffloads::take_block(size_t size) {
  // LibTorch gives that much anyway. Sizes that differ from step to step share such blocks.
  size = std::bit_ceil(size);
  if (auto free = free_.extract(size)) return std::move(free.mapped());
  const auto bytes = static_cast<int64_t>(size);
  at::TensorOptions options(at::kByte);
  std::optional<c10::DeviceGuard> guard;
  if (device_.is_meta()) guard.emplace(c10::Device(c10::kMeta, kPinnedOnMeta));
  options = device_.is_meta() ? options.device(c10::kMeta) : options.pinned_memory(true);
  Block block{at::empty({bytes}, options), nullptr};
  pinned_bytes_ += size;
  return block;
}

void StageOffloads::give_back(Block block) {
  const auto size = static_cast<size_t>(block.bytes.numel());
  free_.emplace(size, std::move(block));
}

void StageOffloads::make_blocks(const std::vector<Moving>& moving) {
  std::vector<Block> blocks;  // all are taken before any is given back
  for (const Moving& each : moving) {
    for (int64_t k = 0; k < most_away_; ++k) blocks.push_back(take_block(each.size));
  }
  for (Block& block : blocks) give_back(std::move(block));
}

void StageOffloads::depart(const Action& action, const std::vector<at::Tensor>& held,
                           const std::vector<const at::Tensor*>& kept) {
  Cell& cell = cells_[action.micro_batch];
  // If the gap comes after a later part, another stage may still need these then.
  for_each_part(held, [&](const at::Tensor& tensor) { cell.made.leave_out(tensor); });
  std::vector<MadeMemory::Made> made = movable(action.micro_batch);
  if (cell.after != action.kind) return;
  cell.made.forget();
  cell.after.reset();
  stage_ = current_stream(device_);
  const c10::InferenceMode outside(false);
  const c10::NoGradGuard no_grad;
  std::unordered_set<const c10::StorageImpl*> not_these;
  for_each_part(held, [&](const at::Tensor& tensor) { not_these.insert(storage_of(tensor)); });
  std::vector<Moving> moving;
  const auto add = [&](StoragePtr storage, std::vector<c10::VariableVersion> counters) {
    if (!may_go(*storage) || !not_these.insert(storage.get()).second) return;
    Moving each;
    each.size = storage->nbytes();
    each.address = place_of(*storage);
    each.changes = sum_of(counters);
    each.storage = std::move(storage);
    each.counters = std::move(counters);
    moving.push_back(std::move(each));
  };
  for (MadeMemory::Made& each : made) add(std::move(each.storage), std::move(each.changes));
  const bool first = std::exchange(is_first_, false);
  if (first) {
    make_blocks(moving);
    moving.clear();
  }
  for (const at::Tensor* tensor : kept) {
    if (storage_of(*tensor) == nullptr || held_by_others({tensor})) continue;
    add(StoragePtr::reclaim_copy(tensor->storage().unsafeGetStorageImpl()),
        {tensor->unsafeGetTensorImpl()->version_counter()});
  }
  if (moving.empty()) return;
  for (Moving& each : moving) each.block = take_block(each.size);
  cell.moving = std::move(moving);
  follow(to_host_, *stage_);
  const StreamScope scope(to_host_);
  // Failing below, end_run() makes the stage's stream wait for the copies that have begun.
  for (const Moving& each : cell.moving) {
    if (each.block.read != nullptr) wait_for_event(*each.block.read, to_host_);
    if (device_.is_meta()) continue;
    each.block.bytes.narrow(0, 0, static_cast<int64_t>(each.size))
        .copy_(bytes_of(each.storage, each.size), kAtOnce);
  }
  cell.copied = record_event(to_host_);
}

void StageOffloads::offload(int64_t micro_batch) {
  Cell& cell = cells_[micro_batch];
  if (cell.moving.empty()) return;
  wait_for_event(*cell.copied, *stage_);
  for (Moving& each : cell.moving) {
    if (each.storage.use_count() > 1 && is_unchanged(each)) {
      each.storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device_));
      each.storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kAway);
      each.away = true;
    } else {  // what had held it is gone, or the copy has not what it holds now
      each.storage.reset();
    }
  }
}

void StageOffloads::reload(int64_t micro_batch) {
  Cell& cell = cells_[micro_batch];
  if (cell.moving.empty()) return;
  const c10::InferenceMode outside(false);
  const c10::NoGradGuard no_grad;
  for (Moving& each : cell.moving) {
    if (each.away && each.storage.use_count() > 1) each.memory = memory_for(each);
  }
  follow(to_device_, *stage_);
  for (const Moving& each : cell.moving) {
    if (each.memory) begin_copy_back(each);
  }
  cell.back = record_event(to_device_);
  for (Moving& each : cell.moving) {
    each.block.read = cell.back;
    give_back(std::move(each.block));
  }
}

void StageOffloads::arrive(int64_t micro_batch) {
  Cell& cell = cells_[micro_batch];
  std::erase_if(origins_, [micro_batch](const auto& origin) {
    return origin.second.place.first == micro_batch;
  });
  if (cell.back == nullptr) return;
  wait_for_event(*cell.back, *stage_);
  for (Moving& each : cell.moving) {
    if (each.memory) give_memory(each);
  }
  cell.moving.clear();
  cell.back.reset();
}

void StageOffloads::settle(int64_t micro_batch) {
  Cell& cell = cells_[micro_batch];
  const StreamScope scope(*stage_);
  // The streams end after all copies that they were given, also those of a call that failed.
  follow(*stage_, to_host_);
  follow(*stage_, to_device_);
  try {
    if (cell.back == nullptr) reload(micro_batch);
    arrive(micro_batch);
  } catch (const c10::OutOfMemoryError&) {
    for (Moving& each : cell.moving) {
      each.block.read = record_event(to_device_);
      give_back(std::move(each.block));
    }
  }
}

void StageOffloads::end_run() noexcept {
  try {
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (!cells_[i].moving.empty()) settle(static_cast<int64_t>(i));
    }
  } catch (const std::exception&) {  // the device is broken
  }
  cells_.clear();
  origins_.clear();
  watched_.forget();
}

}  // namespace gpipe::internal
