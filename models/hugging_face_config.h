// hugging_face_config: the options of a transformer from Hugging Face's config.json, and back.
#ifndef MODELS_HUGGING_FACE_CONFIG_H_
#define MODELS_HUGGING_FACE_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "models/transformer_options.h"

namespace gpipe::models {

// Takes a text as transformers writes it (versions 4 and 5: `rope_scaling` and `rope_theta`, or
// `rope_parameters`), of one of the families in models/families/families.cc: "llama", "qwen3", ....
// Fields that it leaves out have the defaults of transformers.
//
// Each field is used, or known to change nothing that is computed, or refused. Throws
// std::runtime_error with the field for what this package does not compute: other families,
// activations and rotary positions, mixtures of experts, quantized weights, and for any field that
// it does not know. Code that a folder brings along (auto_map) is not run: the outputs are those of
// transformers' own class of the family.
TransformerOptions options_from_config(const std::string& json);

// The type of the weights in the text (`dtype`, or `torch_dtype`); nothing if there is none, or one
// that parameters here cannot have.
std::optional<c10::ScalarType> type_from_config(const std::string& json);

// The text for a model whose parameters have this type. `fused_attention` and the like have no
// field. Throws c10::ValueError for options that do not make a network, or for which the family has
// no field.
std::string config_from_options(const TransformerOptions& options, c10::ScalarType type);

// The same from the text that the options were read from. Its fields that do not change what is
// computed stay, such as those of tokens; if the options are those of the text, all fields stay.
// Without `type`, the text's type stays. Throws std::runtime_error as options_from_config does.
std::string config_from_options(const TransformerOptions& options,
                                std::optional<c10::ScalarType> type, const std::string& source);

}  // namespace gpipe::models

#endif  // MODELS_HUGGING_FACE_CONFIG_H_
