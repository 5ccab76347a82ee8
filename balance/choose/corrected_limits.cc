#include "balance/choose/corrected_limits.h"

#include <algorithm>
#include <set>
#include <utility>

namespace gpipe::balance {

void correct_by_plans(
    std::vector<int64_t> room, int most,
    const std::function<PredictionErrors(const std::vector<int64_t>& limits)>& attempt) {
  std::vector<int64_t> limits = room;
  for (int k = 0; k < most; ++k) {
    const PredictionErrors errors = attempt(limits);
    if (!errors) return;
    for (const PredictionError& error : *errors) {
      int64_t& limit = limits.at(error.device);
      const int64_t corrected = room[error.device] - error.bytes;
      limit = error.exceeds ? std::min(limit, corrected) : corrected;
    }
  }
}

void correct_smallest_cut(
    const Profile& profile, FittingCutOptions options, int most,
    const std::function<PredictionErrors(const Explanation& cut,
                                         const std::vector<int64_t>& limits)>& attempt) {
  std::set<std::vector<int64_t>> tried;
  correct_by_plans(options.limits, most,
                   [&](const std::vector<int64_t>& limits) -> PredictionErrors {
                     options.limits = limits;
                     const std::vector<int64_t> cut = smallest_cut(profile, options);
                     if (!tried.insert(cut).second) return std::nullopt;
                     return attempt(explain(profile, cut, options.explain), limits);
                   });
}

}  // namespace gpipe::balance
