#include "experiments/rows/layer_costs.h"

#include <ATen/ops/empty.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "meta/meta_scope.h"

namespace gpipe::experiments {
namespace {

// A network on the meta device and the profiles that were made of it.
struct Counted {
  torch::nn::Sequential network{nullptr};
  std::map<int64_t, balance::Profile> profiles;  // by the rows of a micro-batch
};

}  // namespace

balance::NominalDevice tesla_p40() {
  balance::NominalDevice device;
  device.flops_per_second = 11.76e12;
  device.bytes_per_second = 346e9;
  return device;
}

LayerCosts measured_costs(const balance::Profile& profile) {
  if (profile.batch_rows < 1) {
    throw std::invalid_argument(
        "the profile has " + std::to_string(profile.batch_rows) +
        " rows in its micro-batch, so its times cannot be scaled to other numbers of rows");
  }
  return [profile](int64_t rows) { return in_proportion(profile, rows); };
}

LayerCosts nominal_costs(const std::function<torch::nn::Sequential()>& make,
                         const std::vector<int64_t>& row, const balance::NominalDevice& device) {
  const auto counted = std::make_shared<Counted>();
  return [counted, make, row, device](int64_t rows) {
    const auto known = counted->profiles.find(rows);
    if (known != counted->profiles.end()) return known->second;
    if (counted->network.is_empty()) {
      const MetaScope scope;
      counted->network = make();
    }
    std::vector<int64_t> shape = {rows};
    shape.insert(shape.end(), row.begin(), row.end());
    const at::Tensor sample = at::empty(shape, at::TensorOptions(at::kFloat).device(at::kMeta));
    return counted->profiles
        .emplace(rows, balance::profile_on_meta(counted->network, {sample}, device))
        .first->second;
  };
}

LayerCosts sum_of_times(std::vector<LayerCosts> parts) {
  return [parts = std::move(parts)](int64_t rows) {
    balance::Profile sum = parts.at(0)(rows);
    for (size_t k = 1; k < parts.size(); ++k) {
      const balance::Profile part = parts[k](rows);
      for (size_t layer = 0; layer < sum.layers.size(); ++layer) {
        add_times(sum.layers[layer], part.layers[layer]);
      }
    }
    return sum;
  };
}

LayerCosts scaled(LayerCosts costs, double factor) {
  return [costs = std::move(costs), factor](int64_t rows) {
    balance::Profile profile = costs(rows);
    for (balance::LayerProfile& layer : profile.layers) scale_times(layer, factor);
    return profile;
  };
}

}  // namespace gpipe::experiments
