#include "diagnose/costs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gpipe::diagnosis {
namespace {

using balance::LayerProfile;
using balance::Profile;

// a + share (b - a).
double mix(double a, double b, double share) { return a + share * (b - a); }
int64_t mix(int64_t a, int64_t b, double share) {
  return std::llround(mix(static_cast<double>(a), static_cast<double>(b), share));
}

// Not parameters and buffers, which do not depend on the rows.
void mix_into(LayerProfile& layer, const LayerProfile& other, double share) {
  layer.forward = mix(layer.forward, other.forward, share);
  layer.backward = mix(layer.backward, other.backward, share);
  layer.split = mixed_split(layer, other, share);
  layer.kept = mix(layer.kept, other.kept, share);
  layer.workspace = mix(layer.workspace, other.workspace, share);
  layer.output = mix(layer.output, other.output, share);
}

}  // namespace

Profile Costs::at(int64_t rows) const {
  const auto above = std::find_if(profiles.begin(), profiles.end(),
                                  [&](const Profile& p) { return p.batch_rows >= rows; });
  const Profile& high = above == profiles.end() ? profiles.back() : *above;
  if (high.batch_rows == rows) return high;
  // Below the fewest rows and above the most: between nothing at 0 rows and what is known.
  const bool inside = above != profiles.end() && above != profiles.begin();
  Profile result = inside ? *(above - 1) : high;
  double share = 0;
  if (inside) {
    share = static_cast<double>(rows - result.batch_rows) /
            static_cast<double>(high.batch_rows - result.batch_rows);
  } else {
    share = 1 - static_cast<double>(rows) / static_cast<double>(high.batch_rows);
  }
  for (size_t k = 0; k < result.layers.size(); ++k) {
    mix_into(result.layers[k], inside ? high.layers[k] : LayerProfile(), share);
  }
  for (size_t k = 0; k < result.skips.size(); ++k) {
    result.skips[k].bytes =
        mix(result.skips[k].bytes, inside ? high.skips.at(k).bytes : int64_t{0}, share);
  }
  result.input = mix(result.input, inside ? high.input : int64_t{0}, share);
  result.batch_rows = rows;
  return result;
}

double work_of(const Profile& profile) {
  double sum = 0;
  for (const LayerProfile& layer : profile.layers) sum += layer.forward + layer.backward;
  return sum;
}

}  // namespace gpipe::diagnosis
