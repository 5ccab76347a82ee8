// hugging_face_config: the options of a transformer from Hugging Face's config.json, and back.
#ifndef MODELS_HUGGING_FACE_CONFIG_H_
#define MODELS_HUGGING_FACE_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "models/transformer_options.h"

namespace gpipe::models {

// Takes a text as transformers writes it (versions 4 and 5: `rope_scaling` and `rope_theta`, or
// `rope_parameters`), of one of the families in models/families.cc: "llama", "qwen3", .... What it
// leaves out has transformers' default.
//
// Each field is used, or known to change nothing that is computed, or refused. Throws
// std::runtime_error with the field for what this package does not compute: other families,
// activations and rotary positions, mixtures of experts, quantized weights, and for any field that
// it does not know. Code that a folder brings along (auto_map) is not run: transformers has its own
// class for each of these families, which is what the outputs are those of.
TransformerOptions options_from_config(const std::string& json);

// The type of the weights, as the text says it (`dtype`, or `torch_dtype`); nothing if it says
// none, or one that parameters here do not have.
std::optional<c10::ScalarType> type_from_config(const std::string& json);

// The text for a model whose parameters have this type. `fused_attention` and the like have no
// field. Throws c10::ValueError for options that make no network, or that the family has no field
// for.
std::string config_from_options(const TransformerOptions& options, c10::ScalarType type);

// The same, of a text that the options were read from: its fields that change nothing stay, such as
// those of tokens; if the options are those of the text, all fields stay as they are. `type`:
// nothing leaves the text's. Throws std::runtime_error as options_from_config.
std::string config_from_options(const TransformerOptions& options,
                                std::optional<c10::ScalarType> type, const std::string& source);

}  // namespace gpipe::models

#endif  // MODELS_HUGGING_FACE_CONFIG_H_
