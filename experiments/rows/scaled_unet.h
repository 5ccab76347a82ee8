// scaled_unet: the U-Nets of the experiments: U-Net (5, 64) as published, and smaller ones of its
// kind.
#ifndef GPIPE_EXPERIMENTS_ROWS_SCALED_UNET_H_
#define GPIPE_EXPERIMENTS_ROWS_SCALED_UNET_H_

#include <ATen/ops/ones.h>

#include <cstdint>

#include "absl/strings/str_format.h"
#include "experiments/rows/row.h"
#include "models/by_name.h"
#include "models/unet.h"

namespace gpipe::experiments {

// The published depth, 5, is not in the title.
inline Network scaled_unet(int64_t depth, int64_t convolutions, int64_t channels, int64_t side) {
  Network network = {absl::StrFormat("U-Net (%d, %d)", convolutions, channels),
                     models::model_by_name("unet:5,64", side)};
  if (depth != 5) network.title += absl::StrFormat(" of depth %d", depth);
  network.model.make = [=] {
    return models::unet(
        models::UNetOptions().depth(depth).num_convs(convolutions).base_channels(channels));
  };
  return network;
}

// Targets of ones, as in torchgpipe's benchmarks.
inline at::Tensor unet_target(const models::NamedModel& model, int64_t rows, c10::Device device) {
  return at::ones({rows, 1, model.row[1], model.row[2]}, device);
}

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SCALED_UNET_H_
