// old_amoebanetd: the AmoebaNet-D that torchgpipe measured until November 2019.
//
// It is kept because a published table ("AmoebaNet-D Memory Benchmark") was measured with it. For
// anything else take models/amoebanetd.h.
#ifndef MODELS_OLD_AMOEBANETD_H_
#define MODELS_OLD_AMOEBANETD_H_

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// The options of torchgpipe's older AmoebaNet-D (its examples/amoebanet from July 2019). It differs
// from AmoebaNetDOptions' networks: every pooling is followed by a convolution and a batch norm,
// the operations take other states, normal cells too give three times their width, and a cell is
// twenty layers instead of one.
struct OldAmoebaNetDOptions {
  TORCH_ARG(int64_t, num_classes) = 10;  // at most 2^24
  // The number of normal cells in each of the three groups: a third of what AmoebaNetDOptions
  // counts. From 0 to 1024. Default: 4.
  TORCH_ARG(int64_t, num_layers) = 4;
  // The stem gives a quarter of this number. At least 8, at most 2^20. Default: 512.
  TORCH_ARG(int64_t, num_filters) = 512;
};

// The layers, 60 num_layers + 85 of them: four in the stem, twenty in each of 3 num_layers + 4
// cells, the classifier. From the fourth to the last layer two to nine tensors go from layer to
// layer as a std::vector<torch::Tensor>. Between cells these are the output of the cell before the
// previous one and that of the previous one; within a cell, its states so far and its input.
//
// Takes images of shape [batch, 3, side, side], where side is a multiple of 32 from 224 to 416.
// Gives scores of shape [batch, num_classes].
//
// Throws c10::ValueError for options that do not make a network.
//
// Example:
//   auto model = gpipe::models::old_amoebanetd(OldAmoebaNetDOptions().num_filters(208));
//   auto scores = model->forward(images);
torch::nn::Sequential old_amoebanetd(const OldAmoebaNetDOptions& options = {});

}  // namespace gpipe::models

#endif  // MODELS_OLD_AMOEBANETD_H_
