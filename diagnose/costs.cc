#include "diagnose/costs.h"

#include <algorithm>

namespace gpipe::diagnosis {

using balance::LayerProfile;
using balance::Profile;

Profile Costs::at(int64_t rows) const {
  const auto above = std::find_if(profiles.begin(), profiles.end(),
                                  [&](const Profile& p) { return p.batch_rows >= rows; });
  const Profile& high = above == profiles.end() ? profiles.back() : *above;
  // Below the fewest rows and above the most, the costs are in proportion to the nearest profile.
  const bool inside = above != profiles.end() && above != profiles.begin();
  if (high.batch_rows == rows || !inside) return in_proportion(high, rows);
  return between(*(above - 1), high, rows);
}

double work_of(const Profile& profile) {
  double sum = 0;
  for (const LayerProfile& layer : profile.layers) sum += layer.forward + layer.backward;
  return sum;
}

}  // namespace gpipe::diagnosis
