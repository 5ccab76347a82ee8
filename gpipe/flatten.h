// flatten: a nested Sequential as a flat one, whose layers a pipeline can cut between.
#ifndef GPIPE_FLATTEN_H_
#define GPIPE_FLATTEN_H_

#include <torch/nn/modules/container/sequential.h>

namespace gpipe {

// A new Sequential of the layers of `nested`, in order: each Sequential in it, at any depth, is
// replaced by its own layers, whose names have its name before them ("block1_conv"; LibTorch allows
// no dots). Anything else is a layer, also a class that is derived from Sequential. The modules are
// the same, so `nested` goes on to run and to be saved: torch::save(nested, ...) has the names that
// the model always had, whatever a pipeline of the flat one trains.
//
// Throws c10::ValueError for an empty holder, and where two layers would get one name.
//
// Example:
//   GPipe pipe(gpipe::flatten(model), {3, 4});
//   ...
//   torch::save(model, "model.pt");
torch::nn::Sequential flatten(const torch::nn::Sequential& nested);

}  // namespace gpipe

#endif  // GPIPE_FLATTEN_H_
