#include "gpipe/internal/run/tied_over_devices.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

bool has_streams(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

// Calls visit(TiedLayer&, its module) for each TiedLayer in the layer.
template <typename Visit>
void for_each_tied(const Layer& layer, const Visit& visit) {
  for (const std::shared_ptr<torch::nn::Module>& module : layer.module.ptr()->modules()) {
    auto* const tied = dynamic_cast<TiedLayer*>(module.get());
    if (tied != nullptr) visit(*tied, module);
  }
}

bool are_same(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
}

// Whether the layer uses the parameters that it is given. Afterwards it has its own parameters
// again, also if it throws.
bool takes_others(TiedLayer& layer) {
  const std::vector<at::Tensor> own = layer.tied_parameters();
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : own) {
    others.push_back(parameter.defined() ? parameter.detach() : parameter);
    if (parameter.defined() && parameter.requires_grad()) others.back().set_requires_grad(true);
  }
  bool takes = false;
  try {
    layer.use_tied_parameters(others);
    takes = are_same(layer.tied_parameters(), others);
  } catch (...) {
    layer.use_tied_parameters(own);
    throw;
  }
  layer.use_tied_parameters(own);
  return takes && are_same(layer.tied_parameters(), own);
}

// A lock that excludes the runs of all pipelines that may give one of these layers copies. Each
// layer is known with one part of such a lock. Layers that are not known yet get a new part in
// common.
RunLock lock_for(const std::vector<const TiedLayer*>& layers) {
  using Part = RunLock::Part;
  static auto* const mutex = new std::mutex;
  static auto* const known = new std::unordered_map<const TiedLayer*, std::weak_ptr<Part>>;
  const std::lock_guard<std::mutex> guard(*mutex);
  for (auto entry = known->begin(); entry != known->end();) {
    entry = entry->second.expired() ? known->erase(entry) : std::next(entry);
  }
  const auto part_of = [](const TiedLayer* layer) -> std::shared_ptr<Part> {
    const auto found = known->find(layer);
    std::shared_ptr<Part> part = found == known->end() ? nullptr : found->second.lock();
    try {
      if (part != nullptr) part->check_process();
    } catch (
        const std::logic_error&) {  // after a fork(): the lock belongs to the parent's pipelines
      return nullptr;
    }
    return part;
  };
  RunLock::Parts parts;
  std::shared_ptr<Part> own;
  for (const TiedLayer* const layer : layers) {
    std::shared_ptr<Part> part = part_of(layer);
    if (part == nullptr) {
      if (own == nullptr) own = std::make_shared<Part>();
      (*known)[layer] = part = own;
    }
    parts.push_back(std::move(part));
  }
  return RunLock(std::move(parts));
}

RunLock lock_of(const std::vector<std::vector<Layer>>& partitions,
                const std::vector<c10::Device>& devices) {
  std::vector<const TiedLayer*> layers;
  // On one device no layer takes a copy. On several devices any layer may take one, because its
  // weight may be used on another device first.
  const bool has_copies = std::any_of(devices.begin(), devices.end(), [&](c10::Device device) {
    return device != devices.front();
  });
  for (size_t stage = 0; has_copies && stage < partitions.size(); ++stage) {
    for (const Layer& layer : partitions[stage]) {
      for_each_tied(layer, [&](const TiedLayer& tied, const auto&) { layers.push_back(&tied); });
    }
  }
  return layers.empty() ? RunLock() : lock_for(layers);
}

}  // namespace

TiedOverDevices::TiedOverDevices(const std::vector<std::vector<Layer>>& partitions,
                                 std::vector<c10::Device> devices)
    : devices_(std::move(devices)),
      run_lock_(lock_of(partitions, devices_)),
      parameters_(find_parameters(partitions)),
      edges_(edges_of(parameters_, places_of(devices_))) {
  for (size_t number = 0; number < parameters_.size(); ++number) {
    std::vector<c10::Device> known;
    for (const int64_t stage : parameters_[number].stages) {
      const c10::Device device = devices_[static_cast<size_t>(stage)];
      if (std::find(known.begin(), known.end(), device) != known.end()) continue;
      if (!known.empty()) copies_.push_back({number, device, {}, 0, nullptr, nullptr});
      known.push_back(device);
    }
  }
  if (parameters_.empty()) return;
  const RunLock::Scope scope(run_lock_);
  check_layers(partitions);
}

std::vector<TiedParameter> TiedOverDevices::find_parameters(
    const std::vector<std::vector<Layer>>& partitions) const {
  std::optional<RunLock::Scope>
      scope;  // while another pipeline runs, the layers have that pipeline's copies
  if (devices_ != std::vector<c10::Device>(devices_.size(), devices_.front())) {
    scope.emplace(run_lock_);
  }
  return tied_parameters_of(partitions, places_of(devices_));
}

void TiedOverDevices::check_layers(const std::vector<std::vector<Layer>>& partitions) const {
  std::unordered_map<const TiedLayer*, c10::Device> device_of;  // only of layers that use one
  for (size_t stage = 0; stage < partitions.size(); ++stage) {
    const c10::Device device = devices_[stage];
    for (const Layer& layer : partitions[stage]) {
      for_each_tied(layer, [&](TiedLayer& tied, const auto&) {
        bool uses = false;
        bool needs_copy = false;
        for (const at::Tensor& parameter : tied.tied_parameters()) {
          for (const TiedParameter& each : parameters_) {
            if (!each.tensor.is_same(parameter)) continue;
            uses = true;
            needs_copy |= devices_[static_cast<size_t>(each.stages.front())] != device;
          }
        }
        if (!uses) return;
        const auto [known, fresh] = device_of.emplace(&tied, device);
        TORCH_CHECK_VALUE(fresh || known->second == device, layer_text(layer), " on ", device,
                          " has a module that a layer on ", known->second,
                          " has, too, and that uses a tied parameter (TiedLayer), of which each "
                          "device has a copy; give each layer a module of its own");
        TORCH_CHECK_VALUE(
            !needs_copy || takes_others(tied), layer_text(layer), " on ", device,
            " uses a parameter that is on another device (TiedLayer::tied_parameters), and cannot "
            "be given the copy that it needs there: override TiedLayer::use_tied_parameters, which "
            "puts the tensors that it is given in the parameters' places, or put both partitions "
            "on one device");
      });
    }
  }
}

void TiedOverDevices::refresh(Transfers& transfers) {
  // Copies are never inference tensors, even if this call is in inference mode, because a later
  // call may train.
  std::optional<c10::InferenceMode> no_inference;
  if (!copies_.empty()) no_inference.emplace(false);
  for (Copy& copy : copies_) {
    const at::Tensor& parameter = parameters_[copy.parameter].tensor;
    // A copy needs the parameter's strides, because with other strides operators may add up in
    // another order.
    const bool fits =
        copy.tensor.defined() && copy.tensor.dtype() == parameter.dtype() &&
        copy.tensor.sizes() == parameter.sizes() &&
        (!parameter.is_non_overlapping_and_dense() || copy.tensor.strides() == parameter.strides());
    if (!fits) {
      // The copy's device becomes the current one, because meta/meta_devices.h makes tensors on the
      // current device.
      c10::OptionalDeviceGuard guard;
      if (!copy.device.is_cpu()) guard.reset_device(copy.device);
      copy.tensor = at::empty_like(parameter.detach(), parameter.options().device(copy.device));
      copy.used.reset();
    }
    const int64_t version = version_of(parameter);
    const c10::StorageImpl* const storage = storage_of(parameter);
    // If the parameter's version has changed, the copy's version must change, too, so that autograd
    // refuses a backward through older values. If the version has not changed, the values may be
    // new all the same, because LibTorch's SGD writes into data(). Autograd does not see that in
    // the parameter either.
    const bool counts = copy.version != version || copy.storage != storage;
    if (copy.used != nullptr) wait_for_event(*copy.used, current_stream(copy.device));
    transfers.copy_into(counts ? copy.tensor.detach() : copy.tensor.variable_data(), parameter);
    copy.version = version;
    copy.storage = storage;
    note_use(copy, current_stream(copy.device));
    // The parameter may have been frozen, or unfrozen, since the last call.
    if (copy.tensor.requires_grad() != parameter.requires_grad()) {
      copy.tensor.set_requires_grad(parameter.requires_grad());
    }
  }
}

void TiedOverDevices::note_use(Copy& copy, const c10::Stream& stream) {
  if (!has_streams(copy.device)) return;
  use_on(copy.tensor, stream);
  copy.used = record_event(stream);
}

void TiedOverDevices::check_run(bool records) {
  std::optional<size_t> changed;
  std::optional<size_t> lost;
  for (Copy& copy : copies_) {
    if (!copy.tensor.defined()) continue;
    const at::Tensor& parameter = parameters_[copy.parameter].tensor;
    if (!records && version_of(parameter) != copy.version) changed = copy.parameter;
    if (!copy.tensor.grad().defined()) continue;
    lost = copy.parameter;
    copy.tensor.mutable_grad().reset();
  }
  const auto name_of = [&](std::optional<size_t> number) {
    return number ? parameters_[*number].name : "";
  };
  TORCH_CHECK(!lost,
              "users' code (a hook, or a custom function) ran a backward of its own towards the "
              "tied parameter '",
              name_of(lost),
              "' in a layer on another device, which has a copy of it "
              "(TiedLayer::use_tied_parameters), and that gradient would be lost. Give the custom "
              "function the parameter as an argument and return its gradient, or put the "
              "partitions that use it on one device");
  TORCH_CHECK(!changed, "the tied parameter '", name_of(changed),
              "' was changed in place by a layer during the call, and its copies on other devices "
              "(TiedLayer::use_tied_parameters) still have the old values. Change parameters "
              "between calls, or put the partitions that use it on one device");
}

std::vector<ModelState::Tied> TiedOverDevices::in_model() const {
  std::vector<ModelState::Tied> result;
  for (size_t number = 0; number < parameters_.size(); ++number) {
    ModelState::Tied tied{parameters_[number].tensor, parameters_[number].stages, {}};
    for (const Copy& copy : copies_) {
      if (copy.parameter == number && copy.tensor.defined()) tied.copies.push_back(copy.tensor);
    }
    result.push_back(std::move(tied));
  }
  return result;
}

void TiedOverDevices::begin_run(const std::vector<c10::Stream>& streams) const {
  for (const Copy& copy : copies_) {
    for (const c10::Stream& stream : streams) {
      if (copy.used != nullptr && stream.device() == copy.device) {
        wait_for_event(*copy.used, stream);
      }
    }
  }
}

void TiedOverDevices::end_run(const std::vector<c10::Stream>& streams) {
  for (Copy& copy : copies_) {
    for (const c10::Stream& stream : streams) {
      if (copy.tensor.defined() && stream.device() == copy.device) note_use(copy, stream);
    }
  }
}

const at::Tensor& TiedOverDevices::used_in(size_t stage, const at::Tensor& parameter) const {
  for (const Copy& copy : copies_) {
    const bool fits = copy.device == devices_[stage] && copy.tensor.defined();
    if (fits && parameters_[copy.parameter].tensor.is_same(parameter)) return copy.tensor;
  }
  return parameter;
}

TiedOverDevices::Scope::Scope(const TiedOverDevices& tied_over_devices,
                              const Partitions& partitions) {
  if (tied_over_devices.copies_.empty()) return;
  try {
    for (size_t stage = 0; stage < partitions.size(); ++stage) {
      for (const Layer& layer : *partitions[stage]) {
        for_each_tied(layer, [&](TiedLayer& tied, const auto& module) {
          const std::vector<at::Tensor> own = tied.tied_parameters();
          std::vector<at::Tensor> used = own;
          for (at::Tensor& parameter : used)
            parameter = tied_over_devices.used_in(stage, parameter);
          if (are_same(own, used)) return;
          formers_.push_back({module, &tied, own});
          tied.use_tied_parameters(used);
        });
      }
    }
  } catch (...) {
    restore();
    throw;
  }
}

TiedOverDevices::Scope::~Scope() { restore(); }

void TiedOverDevices::Scope::restore() noexcept {
  for (auto former = formers_.rbegin(); former != formers_.rend(); ++former) {
    try {
      former->layer->use_tied_parameters(former->parameters);
    } catch (...) {  // unexpected: the layer took other parameters without an error before
    }
  }
  formers_.clear();
}

}  // namespace gpipe::internal
