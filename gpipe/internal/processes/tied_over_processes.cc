#include "gpipe/internal/processes/tied_over_processes.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpipe/internal/model/remote_layers.h"
#include "gpipe/internal/processes/parcel_way.h"
#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {
namespace {

using Parcel = Processes::Parcel;

bool contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

at::Tensor bytes_of(const at::Tensor& values) { return values.view(-1).view(c10::kByte); }

std::atomic<uint64_t> runs_with_gradients{0};

}  // namespace

void TiedOverProcesses::note_gradients() { ++runs_with_gradients; }

TiedOverProcesses::TiedOverProcesses(std::vector<TiedParameter> parameters,
                                     const StageMap& stage_map, size_t stages, World world,
                                     c10::Device device)
    : parameters_(std::move(parameters)),
      edges_(edges_of(parameters_, places_of(stage_map, stages))),
      world_(std::move(world)),
      device_(device),
      shared_(parameters_.size()) {
  for (const TiedParameter& parameter : parameters_) {
    std::vector<int64_t>& processes = processes_.emplace_back();
    for (const int64_t stage : parameter.stages) {
      const int64_t process = stage_map.process_of_stage(stage);
      if (!contains(processes, process)) processes.push_back(process);
    }
  }
}

TiedOverProcesses::Shared TiedOverProcesses::now(const TiedParameter& parameter) const {
  return {static_cast<int64_t>(parameter.tensor._version()), parameter.tensor.const_data_ptr(),
          /*has_arrived=*/false};
}

std::string TiedOverProcesses::changed() const {
  const bool may_have_trained = had_gradients_ || runs_ != runs_with_gradients;
  std::string changed;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    const bool owned = processes_[k].front() == world_.process();
    const Shared current = owned ? now(parameters_[k]) : shared_[k];
    bool same = current.version == shared_[k].version && current.memory == shared_[k].memory;
    if (owned &&
        (!shared_[k].has_arrived || may_have_trained || parameters_[k].tensor.grad().defined())) {
      same = false;
    }
    changed += same ? '0' : '1';
  }
  return changed;
}

std::string TiedOverProcesses::trained() const {
  std::string trained;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    const bool here = contains(processes_[k], world_.process());
    trained += !here ? '-' : parameters_[k].tensor.requires_grad() ? '1' : '0';
  }
  return trained;
}

void TiedOverProcesses::check_trained(const std::vector<std::string>& trained) const {
  for (size_t k = 0; k < parameters_.size(); ++k) {
    for (int64_t replica = 0; replica < world_.replicas(); ++replica) {
      const auto rank_of = [&](int64_t process) { return world_.rank_of(replica, process); };
      const auto trains = [&](int64_t process) {
        return trained.at(static_cast<size_t>(rank_of(process))).at(k) == '1';
      };
      const int64_t owner = processes_[k].front();
      const auto frozen = std::find_if_not(processes_[k].begin(), processes_[k].end(), trains);
      if (!trains(owner) || frozen == processes_[k].end()) continue;
      found_by_all(absl::StrCat("the tied parameter '", parameters_[k].name, "' is frozen on rank ",
                                rank_of(*frozen),
                                ", which has a copy, and requires a gradient on "
                                "rank ",
                                rank_of(owner),
                                ", which owns it and would lack what the "
                                "copy adds to it: freeze it there, too, or on neither"));
    }
  }
}

void TiedOverProcesses::check_run(bool records) const {
  for (size_t k = 0; k < parameters_.size(); ++k) {
    if (!contains(processes_[k], world_.process())) continue;
    const bool owned = processes_[k].front() == world_.process();
    at::Tensor tensor = parameters_[k].tensor;
    const bool lost = !owned && tensor.grad().defined();
    if (lost) tensor.mutable_grad().reset();
    TORCH_CHECK(!lost,
                "users' code (a hook, or a custom function) ran a backward of its own towards the "
                "tied parameter '",
                parameters_[k].name, "' of process ", processes_[k].front(),
                ", of which this process has a copy, and that gradient would be lost. Give the "
                "custom function the parameter as an argument and return its gradient, or put the "
                "partitions that use it into one process");
    if (!owned || records) continue;
    const Shared current = now(parameters_[k]);
    TORCH_CHECK(
        current.version == shared_[k].version && current.memory == shared_[k].memory,
        "the tied parameter '", parameters_[k].name,
        "' was changed in place by a layer during the call, and its copies in other processes "
        "still have the old values. Change parameters between calls, or put the partitions that "
        "use it into one process");
  }
}

void TiedOverProcesses::share(const std::string& changed) {
  const c10::NoGradGuard no_grad;
  const int64_t first = world_.rank_of(world_.replica(), 0);
  std::set<LinkedProcesses::Direction> directions;  // of all processes of the replica
  std::vector<Parcel> sends;
  std::vector<Parcel> receives;
  std::vector<size_t> owned;
  std::vector<std::pair<size_t, at::Tensor>> copies;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    if (changed.at(k) == '0') continue;
    const at::Tensor& tensor = parameters_[k].tensor;
    const int64_t owner = processes_[k].front();
    at::Tensor values;
    if (owner == world_.process()) {
      owned.push_back(k);
      values = bytes_of(tensor.detach().to(device_).contiguous());
    }
    for (const int64_t process : processes_[k]) {
      if (process == owner) continue;
      directions.emplace(first + owner, first + process);
      if (values.defined()) sends.push_back({first + process, values});
      if (process != world_.process()) continue;
      copies.emplace_back(
          k, at::empty(tensor.sizes(), at::TensorOptions(device_).dtype(tensor.scalar_type())));
      receives.push_back({first + owner, bytes_of(copies.back().second)});
    }
  }
  for (const size_t k : owned) shared_[k] = now(parameters_[k]);
  if (!directions.empty()) {
    // All processes of the replica take part, because the links of its runs are between all of
    // them, and serve here, too.
    std::vector<int64_t> ranks(static_cast<size_t>(world_.processes_each()));
    std::iota(ranks.begin(), ranks.end(), first);
    ParcelWay(world_, ranks, {directions.begin(), directions.end()}, device_).move(sends, receives);
  }
  // An optimizer changes the parameters that have a gradient, so these may change now.
  const auto has_gradient = [](const TiedParameter& parameter) {
    return parameter.tensor.grad().defined();
  };
  runs_ = runs_with_gradients;
  had_gradients_ = std::any_of(parameters_.begin(), parameters_.end(), has_gradient);
  for (const auto& [k, values] : copies) {
    // If the model was built on meta, only parameters that layers here have registered have memory.
    // A parameter that a layer uses without registering it stays on the host when the layer is
    // moved.
    if (parameters_[k].tensor.device() != device_) give_memory(parameters_[k].tensor, device_);
    at::Tensor copy = parameters_[k].tensor.detach();
    copy.copy_(values);
  }
}

void TiedOverProcesses::note_shared() noexcept {
  for (Shared& shared : shared_) shared.has_arrived = shared.version >= 0;
}

}  // namespace gpipe::internal
