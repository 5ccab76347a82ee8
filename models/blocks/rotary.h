// Rotary positions: queries and keys turned by angles that grow with their places in a text (Su et
// al., "RoFormer", 2021), with the wavelengths of each RotaryKind.
#ifndef MODELS_BLOCKS_ROTARY_H_
#define MODELS_BLOCKS_ROTARY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/transformer_options.h"

namespace gpipe::models::internal {

// Cosines and sines of the angles, (T, C), or (N, 1, T, C) for places (N, T), for the C rotated
// columns of a head.
struct Rotation {
  at::Tensor cosines, sines;
};

// The rotation of tokens at `places`, (T) or (N, T), of texts of `lengths` tokens, whose shape is
// that of `places` or broadcasts to it. Only a kind that depends_on_length() reads the lengths; for
// others they may be undefined. Computed in float32, in the order of operations of Python's
// `transformers`, and returned in `type`.
//
// The first half of the columns is rotated with the second: i and i + C / 2 have the wavelength
// 2 pi theta^(2 i / C), which the kind stretches.
Rotation rotation(const TransformerOptions& options, const RotaryOptions& rotary,
                  const at::Tensor& places, const at::Tensor& lengths, at::ScalarType type);

// (N, heads, T, D) -> the same shape, with the first C columns of each head rotated. Computed in
// the wider type of both arguments, and returned in that of `heads`.
at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation);

}  // namespace gpipe::models::internal

#endif  // MODELS_BLOCKS_ROTARY_H_
