#include "gpipe/internal/processes/late_registrations.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/tensors/bits_hash.h"
#include "gpipe/runtime/bytes.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

struct Named {
  bool is_buffer = false;
  std::string name;  // within the layer
  at::Tensor tensor;
};

std::vector<Named> all_of(const torch::nn::Module& layer) {
  std::vector<Named> all;
  for (const auto& item : layer.named_parameters())
    all.push_back({false, item.key(), item.value()});
  for (const auto& item : layer.named_buffers()) all.push_back({true, item.key(), item.value()});
  return all;
}

std::string label(bool is_buffer, const std::string& name) {
  return (is_buffer ? "buffer " : "parameter ") + name;
}

std::vector<std::string> labels_of(const torch::nn::Module& layer) {
  std::vector<std::string> labels;
  for (const Named& item : all_of(layer)) labels.push_back(label(item.is_buffer, item.name));
  return labels;
}

// One tensor of a layer, as a process tells the others.
struct Registration {
  size_t layer = 0;
  bool is_buffer = false;
  std::string name;  // if empty, this is only the news that the layer has changed
  c10::ScalarType type = c10::ScalarType::Undefined;
  bool requires_grad = false;
  std::vector<int64_t> shape;
  std::string same_as;  // "layer.label" of an earlier entry that is the same tensor, or empty
  uint64_t values = 0;  // a hash of the values of a new parameter, if there are replicas
};
auto fields(Registration& one) {
  return std::tie(one.layer, one.is_buffer, one.name, one.type, one.requires_grad, one.shape,
                  one.same_as, one.values);
}

// `bytes`: what a process tells; empty if no layer has changed.
std::vector<Registration> registrations_of(const std::string& bytes) {
  if (bytes.empty()) return {};
  return from_bytes<std::vector<Registration>>(bytes, "what a process tells of its layers");
}

// The first parameter that two replicas have registered in the same way, but with different values.
// Nullopt if the replicas differ in something else.
std::optional<Registration> with_other_values(std::vector<Registration> here,
                                              std::vector<Registration> there) {
  std::optional<Registration> found;
  for (size_t k = 0; k < std::min(here.size(), there.size()); ++k) {
    if (!found && here[k].values != there[k].values) found = here[k];
  }
  for (auto* const all : {&here, &there}) {
    for (Registration& one : *all) one.values = 0;
  }
  return to_bytes(here) == to_bytes(there) ? found : std::nullopt;
}

// The first name in `known` that `names` does not have, or has in another order. Null if `names`
// has all of them in order.
const std::string* first_missing(const std::vector<std::string>& known,
                                 const std::vector<std::string>& names) {
  auto position = names.begin();
  for (const std::string& name : known) {
    position = std::find(position, names.end(), name);
    if (position == names.end()) return &name;
    ++position;
  }
  return nullptr;
}

// Registers `tensor` under a name such as "a.b.weight", the weight of b in a. Modules of that path
// that are missing are made.
void put(torch::nn::Module& layer, const Registration& one, const at::Tensor& tensor) {
  std::vector<std::string> path = absl::StrSplit(one.name, '.');
  const std::string name = std::move(path.back());
  path.pop_back();
  torch::nn::Module* owner = &layer;
  std::shared_ptr<torch::nn::Module> child;  // keeps `owner` alive
  for (const std::string& step : path) {
    const auto children = owner->named_children();
    const auto* const found = children.find(step);
    child = found != nullptr
                ? *found
                : owner->register_module(step, std::make_shared<torch::nn::Module>(step));
    owner = child.get();
  }
  if (one.is_buffer) {
    owner->register_buffer(name, tensor);
  } else {
    owner->register_parameter(name, tensor, one.requires_grad);
  }
}

}  // namespace

LateRegistrations::LateRegistrations(const std::vector<std::vector<Layer>>& partitions,
                                     const StageMap& stage_map, const World& world)
    : processes_each_(world.processes_each()), has_replicas_(world.replicas() > 1) {
  if (world.processes() == nullptr) return;
  for (size_t stage = 0; stage < partitions.size(); ++stage) {
    for (const Layer& layer : partitions[stage]) {
      const std::shared_ptr<torch::nn::Module> module = layer.module.ptr();
      layers_.push_back({layer.name, module, stage_map.has_stage(static_cast<int64_t>(stage)),
                         labels_of(*module)});
    }
  }
}

std::string LateRegistrations::news() const {
  std::vector<size_t> changed;
  for (size_t k = 0; k < layers_.size(); ++k) {
    if (layers_[k].is_here && labels_of(*layers_[k].module) != layers_[k].names) {
      changed.push_back(k);
    }
  }
  if (changed.empty()) return "";
  std::vector<Registration> all;
  // Places of tensors that all processes know come first, so that a new name of such a tensor leads
  // to the known place.
  std::unordered_map<const c10::TensorImpl*, std::string> places;
  for (const Known& layer : layers_) {
    for (const Named& item : all_of(*layer.module)) {
      const std::string own = label(item.is_buffer, item.name);
      if (std::find(layer.names.begin(), layer.names.end(), own) == layer.names.end()) continue;
      places.emplace(item.tensor.unsafeGetTensorImpl(), absl::StrCat(layer.key, ".", own));
    }
  }
  for (const size_t k : changed) {
    all.emplace_back().layer = k;  // in any case, because the layer may have no tensors any more
    for (const Named& item : all_of(*layers_[k].module)) {
      const std::string own = absl::StrCat(layers_[k].key, ".", label(item.is_buffer, item.name));
      const std::string& place =
          places.emplace(item.tensor.unsafeGetTensorImpl(), own).first->second;
      Registration one{k,
                       item.is_buffer,
                       item.name,
                       item.tensor.scalar_type(),
                       item.tensor.requires_grad(),
                       item.tensor.sizes().vec(),
                       place == own ? "" : place,
                       0};
      const bool is_new = std::find(layers_[k].names.begin(), layers_[k].names.end(),
                                    label(item.is_buffer, item.name)) == layers_[k].names.end();
      // Buffers may differ between replicas, so their values are not compared.
      if (has_replicas_ && is_new && !item.is_buffer && !item.tensor.is_meta()) {
        one.values = hash_of(own, item.tensor);
      }
      all.push_back(std::move(one));
    }
  }
  return to_bytes(all);
}

LateRegistrations::Names LateRegistrations::take(const std::vector<std::string>& news) {
  Names names;
  std::vector<Registration> told;
  for (size_t rank = 0; rank < news.size(); ++rank) {
    const size_t first = rank % static_cast<size_t>(processes_each_);
    if (news[rank] != news[first]) {
      if (const auto found =
              with_other_values(registrations_of(news[rank]), registrations_of(news[first]))) {
        found_by_all(absl::StrCat(
            "a layer has registered ",
            text::in_quotes(absl::StrCat(layers_.at(found->layer).key, ".", found->name)),
            " in a forward, and it has other values on rank ", rank, " than on rank ", first,
            ", though these are replicas of one model; register it when the layer is made, or run "
            "a forward of the plain model once before the pipeline is made, after "
            "torch::manual_seed with the same seed on all ranks"));
      }
      found_by_all(absl::StrCat(
          "a layer has registered a parameter, a buffer or a module in a forward, and on ranks ",
          first, " and ", rank,
          " not the same, though these are replicas of one model; register what it has when it is "
          "made, not in its first forward, which a replica without rows does not run"));
    }
    if (rank != first) continue;
    for (Registration& one : registrations_of(news[rank])) {
      std::vector<std::string>& of_layer = names[one.layer];
      if (one.name.empty()) continue;
      of_layer.push_back(label(one.is_buffer, one.name));
      told.push_back(std::move(one));
    }
  }
  for (const auto& [layer, own] : names) {
    const std::string* const missing = first_missing(layers_.at(layer).names, own);
    if (missing == nullptr) continue;
    found_by_all(absl::StrCat("layer ", layer, " (", text::in_quotes(layers_[layer].key),
                              ") does not have its ", text::shown(*missing),
                              " any more, or has registered it anew: over several processes a "
                              "layer may register more, but keeps what it had"));
  }
  std::map<std::string, at::Tensor> shared;  // by the place where a tensor was first registered
  const auto place_of = [&](size_t layer, const std::string& own) {
    return absl::StrCat(layers_[layer].key, ".", own);
  };
  const bool some_share = std::any_of(told.begin(), told.end(),
                                      [](const Registration& one) { return !one.same_as.empty(); });
  for (size_t k = 0; k < layers_.size() && some_share; ++k) {
    for (const Named& item : all_of(*layers_[k].module)) {
      shared.emplace(place_of(k, label(item.is_buffer, item.name)), item.tensor);
    }
  }
  for (const Registration& one : told) {
    Known& layer = layers_[one.layer];
    const std::string own = label(one.is_buffer, one.name);
    if (layer.is_here) continue;
    const std::vector<std::string> has = labels_of(*layer.module);
    if (std::find(has.begin(), has.end(), own) != has.end()) continue;
    at::Tensor& tensor = shared[one.same_as.empty() ? place_of(one.layer, own) : one.same_as];
    if (!tensor.defined()) {
      tensor = at::empty(one.shape, at::TensorOptions().dtype(one.type).device(c10::kMeta));
    }
    put(*layer.module, one, tensor);
  }
  return names;
}

void LateRegistrations::know(Names names) {
  for (auto& [layer, own] : names) layers_[layer].names = std::move(own);
}

}  // namespace gpipe::internal
