#include "balance/testing/small_networks.h"

#include "models/amoebanetd.h"
#include "models/resnet.h"
#include "models/unet.h"

namespace gpipe::testing {

std::vector<SmallNetwork> small_networks() {
  return {
      {"U-Net, depth 4, 2 convolutions, 16 channels, 2 x 96 x 96",
       [] { return models::unet(models::UNetOptions().depth(4).num_convs(2).base_channels(16)); },
       {2, 3, 96, 96}},
      {"AmoebaNet-D (3, 32), 1 x 224 x 224",
       [] {
         return models::amoebanetd(
             models::AmoebaNetDOptions().num_classes(10).num_layers(3).num_filters(32));
       },
       {1, 3, 224, 224}},
      {"ResNet [1, 1, 1, 1], 4 x 64 x 64",
       [] {
         return models::resnet(models::ResNetOptions({1, 1, 1, 1}).num_classes(10));
       },
       {4, 3, 64, 64}},
  };
}

}  // namespace gpipe::testing
