#include "balance/step/cut_costs.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::balance {
namespace {

void check(const Profile& profile, const std::vector<int64_t>& balance) {
  const auto all = static_cast<int64_t>(profile.layers.size());
  int64_t sum = 0;
  for (const int64_t layers : balance) {
    if (layers < 1) {
      throw std::invalid_argument("the balance has a partition of " + std::to_string(layers) +
                                  " layers, expected at least one");
    }
    if (layers > std::numeric_limits<int64_t>::max() - sum) {  // the sum would overflow
      throw std::invalid_argument("the balance sums up to more than the profile's " +
                                  std::to_string(all) + " layers");
    }
    sum += layers;
  }
  if (balance.empty() || sum != all) {
    throw std::invalid_argument("the balance sums up to " + std::to_string(sum) +
                                ", but the profile has " + std::to_string(all) + " layers");
  }
}

// Sums the times and bytes of the stage's layers.
StageCosts sum_of_layers(const Profile& profile, const LayerRange& layers) {
  StageCosts stage;
  stage.layers = layers;
  for (int64_t k = layers.first; k <= layers.last; ++k) {
    const LayerProfile& layer = profile.layers[static_cast<size_t>(k)];
    const SplitBackward halves = split_backward(layer);
    stage.forward += layer.forward;
    stage.backward += layer.backward;
    stage.input_gradient += halves.input;
    stage.weight_gradient += halves.weight;
    stage.parameters += layer.parameters;
    stage.buffers += layer.buffers;
    stage.kept += layer.kept;
    stage.waiting += halves.waiting;
    stage.workspace = std::max(stage.workspace, layer.workspace);
  }
  stage.recompute = stage.forward;
  return stage;
}

// What crosses cuts. The activations come first, in the order of Routes.
struct Crossing {
  std::vector<Route> skips;
  std::vector<int64_t> bytes;  // [route]
};

Crossing crossing(const Profile& profile, const std::vector<StageCosts>& stages,
                  bool direct_skips) {
  std::vector<int32_t> stage_of;  // [layer]
  Crossing result;
  for (size_t j = 0; j < stages.size(); ++j) {
    stage_of.resize(static_cast<size_t>(stages[j].layers.last) + 1, static_cast<int32_t>(j));
    if (j + 1 < stages.size()) result.bytes.push_back(profile.layers[stage_of.size() - 1].output);
  }
  for (const SkipProfile& skip : profile.skips) {
    const int32_t to = stage_of.at(static_cast<size_t>(skip.to));
    for (int32_t from = stage_of.at(static_cast<size_t>(skip.from)); from < to;) {
      const int32_t next = direct_skips ? to : from + 1;
      result.skips.push_back({from, next, "skip"});
      result.bytes.push_back(skip.bytes);
      from = next;
    }
  }
  return result;
}

}  // namespace

bool halves_measured(const Profile& profile) {
  return std::all_of(profile.layers.begin(), profile.layers.end(),
                     [](const LayerProfile& layer) { return layer.split.has_value(); });
}

CutCosts cut_costs(const Profile& profile, const std::vector<int64_t>& balance, bool direct_skips) {
  check(profile, balance);
  std::vector<StageCosts> stages;
  int64_t first = 0;
  for (const int64_t layers : balance) {
    stages.push_back(sum_of_layers(profile, {first, first + layers - 1}));
    first += layers;
  }
  Crossing crossing_routes = crossing(profile, stages, direct_skips);
  CutCosts costs{
      std::move(stages),
      Routes::create(static_cast<int64_t>(balance.size()), std::move(crossing_routes.skips)),
      std::move(crossing_routes.bytes)};

  costs.stages.front().received = profile.input;
  costs.stages.back().returned = profile.layers.back().output;
  for (int64_t id = 0; id < costs.routes.size(); ++id) {
    const Route& route = costs.routes[static_cast<RouteId>(id)];
    const int64_t bytes = costs.bytes[static_cast<size_t>(id)];
    costs.stages[static_cast<size_t>(route.source_stage)].sent += bytes;
    costs.stages[static_cast<size_t>(route.target_stage)].received += bytes;
  }
  const bool measured = halves_measured(profile);
  for (size_t j = 0; j < costs.stages.size(); ++j) {
    StageCosts& stage = costs.stages[j];
    if (measured && j > 0) continue;
    stage.waiting = stage.received + stage.kept;
    if (!measured) continue;
    // No stage waits for the first half, so everything runs in the second.
    stage.input_gradient = 0;
    stage.weight_gradient = stage.backward;
  }
  return costs;
}

std::vector<double> whole_costs(const Profile& profile, bool recompute) {
  std::vector<double> costs;
  for (const LayerProfile& layer : profile.layers) {
    costs.push_back(layer.backward + layer.forward * (recompute ? 2 : 1));
  }
  return costs;
}

std::vector<int64_t> even_cut(const Profile& profile, int64_t partitions,
                              const std::vector<LayerRange>& keep_together, bool recompute) {
  PartitionOptions options;
  options.keep_together = keep_together;
  return partition(whole_costs(profile, recompute), partitions, options);
}

}  // namespace gpipe::balance
