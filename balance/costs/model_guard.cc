#include "balance/costs/model_guard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <mutex>

namespace gpipe::balance {
namespace {

bool has_values_in_memory(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_meta();
}

// The whole storage as a tensor of bytes.
at::Tensor bytes_of(const c10::Storage& storage) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  return at::empty({0}, options).set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

bool same_place(const at::Tensor& a, const at::Tensor& b) {
  if (a.device() != b.device() || a.scalar_type() != b.scalar_type() || a.layout() != b.layout() ||
      a.sizes() != b.sizes()) {
    return false;
  }
  if (!a.has_storage() || !b.has_storage()) return a.has_storage() == b.has_storage();
  return a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace

ModelGuard::ModelGuard(torch::nn::Module& model, c10::Device device) {
  const c10::NoGradGuard no_grad;
  for (const auto& module : model.modules()) modes_.emplace_back(module, module->is_training());
  for (const at::Tensor& parameter : model.parameters()) save(parameter);
  for (const at::Tensor& buffer : model.buffers()) save(buffer);
  save(at::detail::getDefaultCPUGenerator());
  if (device.is_cuda()) save(at::globalContext().defaultGenerator(device));
  // Gradients are taken off only when everything is saved, because saving may run out of memory.
  for (const Saved& saved : tensors_) saved.tensor.mutable_grad().reset();
}

ModelGuard::~ModelGuard() {
  try {
    restore();
  } catch (...) {  // a broken device, whose first error already reaches the caller
  }
}

void ModelGuard::save(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (!known_.insert(tensor.unsafeGetTensorImpl()).second) return;
  Saved saved{tensor, tensor.variable_data(), at::Tensor(), tensor.mutable_grad(),
              tensor.requires_grad()};
  if (has_values_in_memory(tensor)) {
    if (known_.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      memories_.push_back({tensor.storage(), bytes_of(tensor.storage()).clone()});
    }
  } else if (!tensor.is_meta()) {
    saved.values = saved.alias.clone();
  }
  tensors_.push_back(std::move(saved));
}

void ModelGuard::save(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generators_.push_back({generator, generator.get_state()});
}

void ModelGuard::restore() {
  const c10::NoGradGuard no_grad;
  for (GeneratorState& saved : generators_) {
    const std::lock_guard<std::mutex> lock(saved.generator.mutex());
    saved.generator.set_state(saved.state);
  }
  // Parents come before their children in `modes_`, because train() sets the children's mode, too.
  for (const auto& [module, training] : modes_) module->train(training);
  for (Saved& saved : tensors_) {
    if (saved.values.defined()) {
      saved.tensor.set_data(saved.values);
    } else if (!same_place(saved.tensor, saved.alias)) {
      saved.tensor.set_data(saved.alias);
    }
    if (saved.tensor.requires_grad() != saved.requires_grad && saved.tensor.is_leaf()) {
      saved.tensor.set_requires_grad(saved.requires_grad);
    }
    saved.tensor.mutable_grad() = saved.gradient;
  }
  // The values are written to the storage and not through the tensors, so that the tensors' version
  // counters stay: a graph of the user may have saved the tensors.
  for (const Memory& memory : memories_) {
    at::Tensor bytes = bytes_of(memory.storage);
    // A layer may have resized the storage, which gets its old size back.
    if (bytes.numel() < memory.bytes.numel()) bytes.resize_(memory.bytes.sizes());
    bytes.narrow(0, 0, memory.bytes.numel()).copy_(memory.bytes);
    memory.storage.unsafeGetStorageImpl()->set_nbytes(memory.bytes.numel());
  }
}

}  // namespace gpipe::balance
