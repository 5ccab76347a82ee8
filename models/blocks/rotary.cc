#include "models/blocks/rotary.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace gpipe::models::internal {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Frequencies are radians per place. Every operation is on float32 tensors, as an angle of some
// thousand radians shows each rounding.
class Frequencies {
 public:
  Frequencies(const TransformerOptions& options, const RotaryOptions& rotary, c10::Device device)
      : rotary_(rotary),
        positions_(static_cast<double>(options.max_positions())),
        original_(rotary.original_positions() > 0 ? static_cast<double>(rotary.original_positions())
                                                  : positions_),
        theta_(rotary.theta() > 0 ? rotary.theta() : options.rope_theta()),
        columns_(static_cast<int64_t>(static_cast<double>(options.size_of_head()) * rotary.part())),
        exponents_(at::arange(0, columns_, 2, at::TensorOptions(at::kFloat).device(device)) /
                   columns_) {}

  // Returns frequencies of shape (C / 2). If they depend on the lengths, the dimensions of
  // `lengths` come before.
  at::Tensor operator()(const at::Tensor& lengths) const {
    switch (rotary_.kind()) {
      case RotaryKind::kPlain:
        return plain();
      case RotaryKind::kLinear:
        return plain() / rotary_.factor();
      case RotaryKind::kDynamic:
        return dynamic(lengths);
      case RotaryKind::kYarn:
        return yarn();
      case RotaryKind::kLongRope:
        return long_rope(lengths);
      case RotaryKind::kLlama3:
        return llama3();
    }
    return {};
  }

 private:
  at::Tensor wavelengths() const { return at::pow(theta_, exponents_); }  // divided by 2 pi
  at::Tensor plain() const { return wavelengths().reciprocal(); }

  at::Tensor dynamic(const at::Tensor& lengths) const {
    const auto columns = static_cast<double>(columns_);
    const double factor = rotary_.factor();
    // The stretch is computed in float32, because `transformers` has the lengths as a tensor, too.
    const at::Tensor stretch =
        (lengths.to(at::kFloat) * factor / positions_ - (factor - 1)).pow(columns / (columns - 2));
    const at::Tensor longer = at::pow((theta_ * stretch).unsqueeze(-1), exponents_).reciprocal();
    return at::where(lengths.gt(static_cast<int64_t>(positions_)).unsqueeze(-1), longer, plain());
  }

  at::Tensor yarn() const {
    const auto column_of = [&](double rotations) {
      return static_cast<double>(columns_) * std::log(original_ / (rotations * 2 * kPi)) /
             (2 * std::log(theta_));
    };
    double low = column_of(rotary_.beta_fast()), high = column_of(rotary_.beta_slow());
    if (rotary_.whole_range()) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(columns_ - 1));
    if (low == high) high += 0.001;  // a step
    const at::Tensor pairs = at::arange(columns_ / 2, exponents_.options());
    const at::Tensor kept = 1 - ((pairs - low) / (high - low)).clamp(0, 1);
    const at::Tensor lengths = wavelengths();
    return (rotary_.factor() * lengths).reciprocal() * (1 - kept) + lengths.reciprocal() * kept;
  }

  at::Tensor long_rope(const at::Tensor& lengths) const {
    const auto with = [&](const std::vector<double>& factors) {
      return (at::tensor(factors, exponents_.options()) * wavelengths()).reciprocal();
    };
    return at::where(lengths.gt(static_cast<int64_t>(original_)).unsqueeze(-1),
                     with(rotary_.long_factors()), with(rotary_.short_factors()));
  }

  at::Tensor llama3() const {
    const double factor = rotary_.factor(), low = rotary_.low_freq_factor(),
                 high = rotary_.high_freq_factor();
    const at::Tensor kept = plain();
    const at::Tensor lengths = kept.reciprocal() * (2 * kPi);
    const at::Tensor is_long = lengths.gt(original_ / low);
    const at::Tensor stretched = at::where(is_long, kept / factor, kept);
    const at::Tensor share = (lengths.reciprocal() * original_ - low) / (high - low);
    const at::Tensor between = (1 - share) * stretched / factor + share * stretched;
    const at::Tensor is_between = lengths.lt(original_ / high).logical_or(is_long).logical_not();
    return at::where(is_between, between, stretched);
  }

  const RotaryOptions& rotary_;
  double positions_, original_, theta_;
  int64_t columns_;
  at::Tensor exponents_;
};

}  // namespace

Rotation rotation(const TransformerOptions& options, const RotaryOptions& rotary,
                  const at::Tensor& places, const at::Tensor& lengths, at::ScalarType type) {
  const at::Tensor frequencies = Frequencies(options, rotary, places.device())(lengths);
  const at::Tensor half = places.unsqueeze(-1).to(at::kFloat) * frequencies;
  at::Tensor angles = at::cat({half, half}, -1);
  if (angles.dim() == 3) angles = angles.unsqueeze(1);
  at::Tensor cosines = angles.cos(), sines = angles.sin();
  if (rotary.attention_factor() != 1) {
    cosines = cosines * rotary.attention_factor();
    sines = sines * rotary.attention_factor();
  }
  return {cosines.to(type), sines.to(type)};
}

at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation) {
  const int64_t columns = rotation.cosines.size(-1);
  const bool whole = columns == heads.size(-1);
  const at::Tensor turning = whole ? heads : heads.slice(-1, 0, columns);
  // This product comes before the halves are used. Then the backward sums up the gradients of the
  // halves first, the sum lies in memory as in Python's `transformers`, and norms of heads round
  // alike.
  const at::Tensor kept = turning * rotation.cosines;
  const std::vector<at::Tensor> halves = turning.chunk(2, -1);
  const at::Tensor turned = at::cat({-halves[1], halves[0]}, -1);
  const at::Tensor result = (kept + turned * rotation.sines).to(heads.scalar_type());
  return whole ? result : at::cat({result, heads.slice(-1, columns)}, -1);
}

}  // namespace gpipe::models::internal
