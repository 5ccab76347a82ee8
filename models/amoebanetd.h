// amoebanetd: AmoebaNet-D, an evolved image classifier, as a flat Sequential.
#ifndef MODELS_AMOEBANETD_H_
#define MODELS_AMOEBANETD_H_

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// The options of AmoebaNet-D (Real et al., "Regularized Evolution for Image Classifier Architecture
// Search", 2018) in the form that torchgpipe measured. It differs from the paper: what the genotype
// calls max_pool_3x3 is an average pool, and the normal cell joins the states 0, 3, 4 and 6.
struct AmoebaNetDOptions {
  TORCH_ARG(int64_t, num_classes) = 1000;  // at most 2^24
  // The number of normal cells, a multiple of 3: each of the three groups has a third of them. At
  // most 3072. Default: 18.
  TORCH_ARG(int64_t, num_layers) = 18;
  // The stem gives a quarter of this number. At least 8, at most 2^20. Default: 256.
  TORCH_ARG(int64_t, num_filters) = 256;
};

// The layers, num_layers + 6 of them: a stem, two reduction cells, three groups of normal cells
// with a reduction cell between them, the classifier. From the second layer to the classifier, two
// tensors go from layer to layer as a std::vector<torch::Tensor>: the output of the previous layer
// and that layer's input.
//
// Takes images of shape [batch, 3, side, side], where side is a multiple of 32 from 224 to 416.
// Gives scores of shape [batch, num_classes].
//
// Throws c10::ValueError for options that do not make a network.
//
// Example:
//   auto model = gpipe::models::amoebanetd(AmoebaNetDOptions().num_layers(36).num_filters(544));
//   auto scores = model->forward(images);
torch::nn::Sequential amoebanetd(const AmoebaNetDOptions& options = {});

}  // namespace gpipe::models

#endif  // MODELS_AMOEBANETD_H_
