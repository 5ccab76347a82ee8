// Rotary positions: queries and keys turned by angles that grow with their places in a text (Su et
// al., "RoFormer", 2021), with the wavelengths of each RotaryKind.
#ifndef MODELS_ROTARY_H_
#define MODELS_ROTARY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/transformer_options.h"

namespace gpipe::models::internal {

// The angles' cosines and sines, (T, C), or (N, 1, T, C) for places (N, T), for the C columns of a
// head that are rotated.
struct Rotation {
  at::Tensor cosines, sines;
};

// For tokens at `places`, (T) or (N, T), of texts of `lengths` tokens: as `places`, or of a shape
// that broadcasts to it. Only a kind that depends_on_length() looks at lengths, which may be
// undefined for the others. Computed in float32, in the order in which Python's `transformers`
// computes it, and given in `type`.
//
// The first half of the columns is rotated with the second: i and i + C / 2 have the wavelength
// 2 pi theta^(2 i / C), which the kind stretches.
Rotation rotation(const TransformerOptions& options, const RotaryOptions& rotary,
                  const at::Tensor& places, const at::Tensor& lengths, at::ScalarType type);

// (N, heads, T, D) -> the same, the first C columns of each head rotated. In the wider type of both
// arguments, and given in that of `heads`.
at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation);

}  // namespace gpipe::models::internal

#endif  // MODELS_ROTARY_H_
