#include "gpipe/internal/run/device_ties.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

bool has_streams(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

std::string name_of(const Layer& layer) {
  return "layer " + std::to_string(layer.index) + " ('" + layer.name + "')";
}

// visit(TiedLayer&, its module) for each in the layer.
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

// Whether the layer uses what it is given. It has its own parameters again afterwards.
bool takes_others(TiedLayer& layer) {
  const std::vector<at::Tensor> own = layer.tied_parameters();
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : own) {
    others.push_back(parameter.defined() ? parameter.detach() : parameter);
  }
  layer.use_tied_parameters(others);
  const bool takes = are_same(layer.tied_parameters(), others);
  layer.use_tied_parameters(own);
  return takes && are_same(layer.tied_parameters(), own);
}

}  // namespace

DeviceTies::DeviceTies(const std::vector<std::vector<Layer>>& partitions,
                       std::vector<c10::Device> devices)
    : devices_(std::move(devices)),
      ties_(ties_of(partitions, places_of(devices_))),
      edges_(edges_of(ties_, places_of(devices_))) {
  for (size_t number = 0; number < ties_.size(); ++number) {
    std::vector<c10::Device> known;
    for (const int64_t stage : ties_[number].stages) {
      const c10::Device device = devices_[static_cast<size_t>(stage)];
      if (std::find(known.begin(), known.end(), device) != known.end()) continue;
      if (!known.empty()) copies_.push_back({number, device, {}, 0, nullptr, nullptr});
      known.push_back(device);
    }
  }
  if (!ties_.empty()) check_layers(partitions);
}

void DeviceTies::check_layers(const std::vector<std::vector<Layer>>& partitions) const {
  std::unordered_map<const TiedLayer*, c10::Device> device_of;  // that use a tie
  for (size_t stage = 0; stage < partitions.size(); ++stage) {
    const c10::Device device = devices_[stage];
    for (const Layer& layer : partitions[stage]) {
      for_each_tied(layer, [&](TiedLayer& tied, const auto&) {
        bool uses = false;
        bool needs_copy = false;
        for (const at::Tensor& parameter : tied.tied_parameters()) {
          for (const Tie& tie : ties_) {
            if (!tie.tensor.is_same(parameter)) continue;
            uses = true;
            needs_copy |= devices_[static_cast<size_t>(tie.stages.front())] != device;
          }
        }
        if (!uses) return;
        const auto [known, fresh] = device_of.emplace(&tied, device);
        TORCH_CHECK_VALUE(fresh || known->second == device, name_of(layer), " on ", device,
                          " has a module that a layer on ", known->second,
                          " has, too, and that uses a tied parameter (TiedLayer), of which each "
                          "device has a copy; give each layer a module of its own");
        TORCH_CHECK_VALUE(
            !needs_copy || takes_others(tied), name_of(layer), " on ", device,
            " uses a parameter that is on another device (TiedLayer::tied_parameters), and cannot "
            "be given the copy that it needs there: override TiedLayer::use_tied_parameters, which "
            "puts the tensors that it is given in the parameters' places, or put both partitions "
            "on one device");
      });
    }
  }
}

void DeviceTies::refresh(Transfers& transfers) {
  // Copies are no tensors of inference mode, whatever the call: a later one may train.
  std::optional<c10::InferenceMode> no_inference;
  if (!copies_.empty()) no_inference.emplace(false);
  for (Copy& copy : copies_) {
    const at::Tensor& parameter = ties_[copy.tie].tensor;
    const bool fits = copy.tensor.defined() && copy.tensor.dtype() == parameter.dtype() &&
                      copy.tensor.sizes() == parameter.sizes();
    if (!fits) {
      // On meta, tensors are made on the current device (meta/meta_devices.h).
      c10::OptionalDeviceGuard guard;
      if (!copy.device.is_cpu()) guard.reset_device(copy.device);
      copy.tensor = at::empty_like(parameter.detach(), parameter.options().device(copy.device));
      copy.used.reset();
    }
    const int64_t version = version_of(parameter);
    const c10::StorageImpl* const storage = storage_of(parameter);
    // A change that the parameter has counted counts for the copy, too: autograd refuses a backward
    // of before. Otherwise the values may be new all the same, as LibTorch's SGD writes into
    // data(), and autograd does not see it either.
    const bool counts = copy.version != version || copy.storage != storage;
    if (copy.used != nullptr) copy.used->block(current_stream(copy.device));
    transfers.copy_into(counts ? copy.tensor.detach() : copy.tensor.variable_data(), parameter);
    copy.version = version;
    copy.storage = storage;
    note_use(copy, current_stream(copy.device));
    // It may have been frozen since.
    if (copy.tensor.requires_grad() != parameter.requires_grad()) {
      copy.tensor.set_requires_grad(parameter.requires_grad());
    }
  }
}

void DeviceTies::note_use(Copy& copy, const c10::Stream& stream) {
  if (!has_streams(copy.device)) return;
  use_on(copy.tensor, stream);
  copy.used = std::make_shared<c10::Event>(stream.device_type());
  copy.used->record(stream);
}

std::vector<ModelState::Tied> DeviceTies::in_model() const {
  std::vector<ModelState::Tied> result;
  for (size_t number = 0; number < ties_.size(); ++number) {
    ModelState::Tied tied{ties_[number].tensor, ties_[number].stages, {}};
    for (const Copy& copy : copies_) {
      if (copy.tie == number && copy.tensor.defined()) tied.copies.push_back(copy.tensor);
    }
    result.push_back(std::move(tied));
  }
  return result;
}

void DeviceTies::begin_run(const std::vector<c10::Stream>& streams) const {
  for (const Copy& copy : copies_) {
    for (const c10::Stream& stream : streams) {
      if (copy.used != nullptr && stream.device() == copy.device) copy.used->block(stream);
    }
  }
}

void DeviceTies::end_run(const std::vector<c10::Stream>& streams) {
  for (Copy& copy : copies_) {
    for (const c10::Stream& stream : streams) {
      if (copy.tensor.defined() && stream.device() == copy.device) note_use(copy, stream);
    }
  }
}

const at::Tensor& DeviceTies::used_in(size_t stage, const at::Tensor& parameter) const {
  for (const Copy& copy : copies_) {
    const bool fits = copy.device == devices_[stage] && copy.tensor.defined();
    if (fits && ties_[copy.tie].tensor.is_same(parameter)) return copy.tensor;
  }
  return parameter;
}

DeviceTies::Scope::Scope(const DeviceTies& ties, const Partitions& partitions) {
  if (ties.copies_.empty()) return;
  try {
    for (size_t stage = 0; stage < partitions.size(); ++stage) {
      for (const Layer& layer : *partitions[stage]) {
        for_each_tied(layer, [&](TiedLayer& tied, const auto& module) {
          const std::vector<at::Tensor> own = tied.tied_parameters();
          std::vector<at::Tensor> used = own;
          for (at::Tensor& parameter : used) parameter = ties.used_in(stage, parameter);
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

DeviceTies::Scope::~Scope() { restore(); }

void DeviceTies::Scope::restore() noexcept {
  for (auto former = formers_.rbegin(); former != formers_.rend(); ++former) {
    try {
      former->layer->use_tied_parameters(former->parameters);
    } catch (...) {  // of a layer that has taken others before
    }
  }
  formers_.clear();
}

}  // namespace gpipe::internal
