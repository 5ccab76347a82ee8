// LayerCosts: what the layers of a network cost for a micro-batch of any number of rows.
#ifndef GPIPE_EXPERIMENTS_ROWS_LAYER_COSTS_H_
#define GPIPE_EXPERIMENTS_ROWS_LAYER_COSTS_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "balance/costs/flops.h"
#include "balance/costs/profile.h"

namespace gpipe::experiments {

// The profile of a micro-batch of `rows` rows, at least 1.
using LayerCosts = std::function<balance::Profile(int64_t rows)>;

// The costs of a measured profile. For another number of rows than the profile's, times and
// activations are taken in proportion. Throws std::invalid_argument for a profile without rows.
LayerCosts measured_costs(const balance::Profile& profile);

// The costs of a network on a device that was not measured: its FLOPs and bytes, counted on the
// meta device once for each number of rows (balance::profile_on_meta).
//
// `make` is called in a MetaScope; `row` is the shape of a sample.
LayerCosts nominal_costs(const std::function<torch::nn::Sequential()>& make,
                         const std::vector<int64_t>& row,
                         const balance::NominalDevice& device = {});

// The costs of the first of `parts` (at least one), but with the times of all parts added up.
LayerCosts sum_of_times(std::vector<LayerCosts> parts);

// The device of the published tables, by its data sheet. No kernel reaches these speeds, so times
// counted for it must be scaled().
balance::NominalDevice tesla_p40();

// The costs with every time multiplied by `factor`.
LayerCosts scaled(LayerCosts costs, double factor);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_LAYER_COSTS_H_
