// small_networks: the zoo at a size that two cores train in milliseconds, and layers that sleep.
#ifndef BALANCE_TESTING_SMALL_NETWORKS_H_
#define BALANCE_TESTING_SMALL_NETWORKS_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::testing {

struct SmallNetwork {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  std::vector<int64_t> shape;  // of a micro-batch
};

// A U-Net, an AmoebaNet-D and a ResNet.
std::vector<SmallNetwork> small_networks();

// Layers that take about 5 ms forward and 10 ms backward and no processor: any number of them can
// run at once on any machine.
SmallNetwork sleeping_network(int64_t layers);

}  // namespace gpipe::testing

#endif  // BALANCE_TESTING_SMALL_NETWORKS_H_
