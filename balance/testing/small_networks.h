// small_networks: the zoo at a size that two cores train in milliseconds.
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

}  // namespace gpipe::testing

#endif  // BALANCE_TESTING_SMALL_NETWORKS_H_
