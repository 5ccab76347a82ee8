// small_networks: the zoo at a size that two cores train in milliseconds, and layers that sleep.
#ifndef BALANCE_TESTING_SMALL_NETWORKS_H_
#define BALANCE_TESTING_SMALL_NETWORKS_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::testing {

struct SmallNetwork {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  std::vector<int64_t> shape;  // shape of a micro-batch
  int64_t words = 0;           // above 0: the network takes token ids below it
};

// Returns `micro_batches` micro-batches in one tensor: numbers from 0 to 1, or token ids.
at::Tensor random_input(const SmallNetwork& network, int64_t micro_batches = 1);

// A U-Net, an AmoebaNet-D and a ResNet.
std::vector<SmallNetwork> small_networks();

// A language model in the style of GPT-2.
SmallNetwork small_transformer();

// Layers that take about 5 ms forward and 10 ms backward but no processor time: any number of them
// can run at the same time on any machine.
SmallNetwork sleeping_network(int64_t layers);

}  // namespace gpipe::testing

#endif  // BALANCE_TESTING_SMALL_NETWORKS_H_
