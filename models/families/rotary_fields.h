// rotary_fields: the fields of config.json that say how positions are rotated, and how layers
// differ.
#ifndef MODELS_FAMILIES_ROTARY_FIELDS_H_
#define MODELS_FAMILIES_ROTARY_FIELDS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "models/families/config_fields.h"
#include "models/transformer_options.h"

namespace gpipe::models::internal {

struct RotaryDefaults {
  double theta = 10000;
  double part = 1;
  // Whether a part of a head may be rotated; otherwise `part` must be 1.
  bool may_be_partial = false;
  const char* theta_name = "rope_theta";
  const char* part_name = "partial_rotary_factor";
  // Whether only plain positions and LongRoPE are allowed, also under its old names, with the
  // original length beside the other fields and not among those of the rotation (Phi-3).
  bool as_phi3 = false;
};

// Reads or writes `rope_scaling` or `rope_parameters`, and the fields beside them: rope_theta and
// the rotary options of all kinds that rotate.
void rotary_fields(ConfigFields& fields, TransformerOptions& options,
                   const RotaryDefaults& defaults = {});

// Reads or writes the fields of Gemma 3, in which layers with a window (the second kind) have other
// angles.
void two_rotary_fields(ConfigFields& fields, TransformerOptions& options);

// Reads or writes one window for all layers; null means no window.
void window_field(ConfigFields& fields, TransformerOptions& options, int64_t otherwise);

// Reads or writes which layers rotate, in the fields of SmolLM 3. To be called before the functions
// for windows.
void rotating_field(ConfigFields& fields, TransformerOptions& options);

// Sets which blocks have experts. To be called before the functions for windows.
void sparse_layers(TransformerOptions& options,
                   const std::function<bool(int64_t block)>& is_sparse);

// Reads or writes `layer_types`, which says for each layer whether it has the window. Without that
// field `has_window` says so.
void layer_type_fields(ConfigFields& fields, TransformerOptions& options, int64_t window,
                       const std::function<bool(int64_t block)>& has_window);

}  // namespace gpipe::models::internal

#endif  // MODELS_FAMILIES_ROTARY_FIELDS_H_
