// Running averages (EMA) of the parameters that train, as buffers beside the parameters. So a
// checkpoint keeps the averages, an average is on its parameter's device, and a checkpoint is read
// under any layout.
//
// docs/guide/34-recipes.md has such averages in a list, for a run that keeps two checkpoints.
#ifndef FINE_TUNE_AVERAGE_H_
#define FINE_TUNE_AVERAGE_H_

#include <torch/nn/module.h>

#include "gpipe/gpipe.h"

namespace fine_tune {

// Registers a buffer "weight_average" beside each parameter "weight" that trains, with its value.
// To be called before a pipeline is made of the model.
void add_averages(torch::nn::Module& model);

// Sets each average of this process to decay * average + (1 - decay) * parameter. To be called
// after each step of the optimizer.
void update_averages(gpipe::GPipe& pipe, double decay);

// While this object lives, the parameters of this process have the values of their averages. No
// step may be made meanwhile.
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
