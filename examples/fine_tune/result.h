// write_result: writes the result of a fine-tuning, which is the folder of an adapter or of a
// model.
#ifndef FINE_TUNE_RESULT_H_
#define FINE_TUNE_RESULT_H_

#include <torch/nn/modules/container/sequential.h>

#include <string>

#include "examples/fine_tune/settings.h"

namespace fine_tune {

// The model that is trained, with adapters and averages if there are any. `weights`: whether those
// of --model are read; otherwise they are random. Throws std::invalid_argument that names the flag
// for a folder whose weights cannot be read, and for targets that the model does not have.
torch::nn::Sequential make_model(const Settings& settings, bool weights);

// Writes Settings::result() from the checkpoint of a training over any layout. It is done in one
// process, on the CPU, which needs memory for the whole model. Throws as save_lora and
// save_hugging_face (models/).
void write_result(const Settings& settings, const std::string& checkpoint);

}  // namespace fine_tune

#endif  // FINE_TUNE_RESULT_H_
