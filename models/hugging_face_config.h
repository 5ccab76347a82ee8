// hugging_face_config: the options of a transformer from Hugging Face's config.json, and back.
#ifndef MODELS_HUGGING_FACE_CONFIG_H_
#define MODELS_HUGGING_FACE_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <string>

#include "models/transformer_options.h"

namespace gpipe::models {

// Takes a text of `"model_type": "gpt2"` or `"llama"`, as transformers writes it (versions 4 and 5:
// `rope_theta`, or `rope_parameters`). What it leaves out has transformers' default.
//
// Throws std::runtime_error with the field for what this package does not compute: other models,
// activations, scaled rotary positions, biases in a Llama, attention scaled per layer, and for any
// field that is not known to leave the outputs as they are (a quantization, say).
TransformerOptions options_from_config(const std::string& json);

// The text for a model whose parameters have this type. `fused_attention` has no field. Throws
// c10::ValueError for options that make no network.
std::string config_from_options(const TransformerOptions& options, c10::ScalarType type);

}  // namespace gpipe::models

#endif  // MODELS_HUGGING_FACE_CONFIG_H_
