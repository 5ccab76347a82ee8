// Averages of what trains (EMA), as buffers beside the parameters: a checkpoint keeps them, they
// are where their parameters are, and they are read again under any layout.
//
// docs/guide/34-recipes.md has the same by a list, for a run that keeps two checkpoints.
#ifndef FINE_TUNE_AVERAGE_H_
#define FINE_TUNE_AVERAGE_H_

#include <torch/nn/module.h>

#include "gpipe/gpipe.h"

namespace fine_tune {

// Registers a buffer "weight_average" beside each parameter "weight" that trains, with its value.
// To be called before a pipeline is made of the model.
void add_averages(torch::nn::Module& model);

// The averages of this process become decay * average + (1 - decay) * parameter. After each step of
// the optimizer.
void update_averages(gpipe::GPipe& pipe, double decay);

// While it lives, the parameters of this process have the values of their averages. No step may be
// made meanwhile.
class WithAverages {
 public:
  explicit WithAverages(gpipe::GPipe pipe);
  ~WithAverages();
  WithAverages(const WithAverages&) = delete;
  WithAverages& operator=(const WithAverages&) = delete;

 private:
  void exchange();

  gpipe::GPipe pipe_;
};

}  // namespace fine_tune

#endif  // FINE_TUNE_AVERAGE_H_
