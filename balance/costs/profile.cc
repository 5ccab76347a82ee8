#include "balance/costs/profile.h"

#include <cmath>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>

namespace gpipe::balance {
namespace {

// Returns a + share (b - a).
double mix(double a, double b, double share) { return a + share * (b - a); }
int64_t mix(int64_t a, int64_t b, double share) {
  return a + std::llround(share * static_cast<double>(b - a));
}

// Mixes everything that depends on the rows, so not parameters and buffers.
void mix_into(LayerProfile& layer, const LayerProfile& other, double share) {
  layer.forward = mix(layer.forward, other.forward, share);
  layer.backward = mix(layer.backward, other.backward, share);
  layer.kept = mix(layer.kept, other.kept, share);
  layer.workspace = mix(layer.workspace, other.workspace, share);
  layer.output = mix(layer.output, other.output, share);
  if (!other.split) layer.split.reset();
  if (!layer.split) return;
  layer.split->input = mix(layer.split->input, other.split->input, share);
  layer.split->weight = mix(layer.split->weight, other.split->weight, share);
  layer.split->waiting = mix(layer.split->waiting, other.split->waiting, share);
}

void mix_into(Profile& profile, const Profile& other, double share) {
  for (size_t k = 0; k < profile.layers.size(); ++k) {
    mix_into(profile.layers[k], other.layers.at(k), share);
  }
  for (size_t k = 0; k < profile.skips.size(); ++k) {
    profile.skips[k].bytes = mix(profile.skips[k].bytes, other.skips.at(k).bytes, share);
  }
  profile.input = mix(profile.input, other.input, share);
}

// The common value of two profiles; none if one of them does not have it. Throws if they differ.
template <typename Value>
std::optional<Value> common(const std::optional<Value>& a, const std::optional<Value>& b,
                            const char* what) {
  if (!a || !b) return std::nullopt;
  if (*a == *b) return a;
  throw std::invalid_argument(std::string("between: the two profiles were made ") + what +
                              "; give two that were made alike");
}

}  // namespace

void scale_times(LayerProfile& layer, double factor) {
  layer.forward *= factor;
  layer.backward *= factor;
  if (!layer.split) return;
  layer.split->input *= factor;
  layer.split->weight *= factor;
}

void add_times(LayerProfile& layer, const LayerProfile& other) {
  layer.forward += other.forward;
  layer.backward += other.backward;
  if (!other.split) layer.split.reset();
  if (!layer.split) return;
  layer.split->input += other.split->input;
  layer.split->weight += other.split->weight;
}

Profile in_proportion(const Profile& profile, int64_t rows) {
  if (profile.batch_rows < 1 || rows < 0) {
    throw std::invalid_argument("in_proportion: a profile of micro-batches of " +
                                std::to_string(profile.batch_rows) + " rows, and " +
                                std::to_string(rows) +
                                " rows were given; give a profile with rows, and at least 0");
  }
  Profile result = profile;
  if (rows == profile.batch_rows) return result;
  Profile nothing = profile;  // the costs of a micro-batch without rows
  nothing.input = 0;
  for (LayerProfile& layer : nothing.layers) {
    scale_times(layer, 0);
    layer.kept = layer.workspace = layer.output = 0;
    if (layer.split) layer.split->waiting = 0;
  }
  for (SkipProfile& skip : nothing.skips) skip.bytes = 0;
  mix_into(result, nothing,
           1 - static_cast<double>(rows) / static_cast<double>(profile.batch_rows));
  result.batch_rows = rows;
  return result;
}

Profile between(const Profile& low, const Profile& high, int64_t rows) {
  if (low.batch_rows >= high.batch_rows || low.layers.size() != high.layers.size() ||
      low.skips.size() != high.skips.size() || rows < 0) {
    throw std::invalid_argument(
        "between: profiles of micro-batches of " + std::to_string(low.batch_rows) + " and " +
        std::to_string(high.batch_rows) + " rows, of " + std::to_string(low.layers.size()) +
        " and " + std::to_string(high.layers.size()) + " layers, and " + std::to_string(rows) +
        " rows were given; give two of the same layers, the one with fewer rows first, and at "
        "least 0 rows");
  }
  Profile result = low;
  result.autocast = common(low.autocast, high.autocast, "under different guards of autocast");
  (void)common(std::optional(low.deferred_batch_norm), std::optional(high.deferred_batch_norm),
               "one with deferred batch norms, one without");
  result.shared_inputs =
      common(low.shared_inputs, high.shared_inputs, "with different shared inputs");
  mix_into(result, high,
           static_cast<double>(rows - low.batch_rows) /
               static_cast<double>(high.batch_rows - low.batch_rows));
  result.batch_rows = rows;
  return result;
}

}  // namespace gpipe::balance
