#include "gpipe/schedule/search/search_work.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/placement.h"
#include "gpipe/schedule/search/searched.h"

namespace gpipe::internal {

int64_t search_work(std::string_view name, int64_t stages, int64_t micro_batches,
                    const NamedScheduleOptions& options) {
  const int64_t workers = placement_by_name(name, stages, options).workers();
  if (micro_batches < 1) {
    throw std::invalid_argument("search_work needs at least 1 micro-batch, got " +
                                std::to_string(micro_batches) + "; the least is 1");
  }
  constexpr std::pair<std::string_view, Searched> kSearching[] = {
      {"zb-h2", Searched::kZbH2},           {"zb-v", Searched::kZbV},
      {"v-half", Searched::kVHalf},         {"v-min", Searched::kVMin},
      {"dualpipe-v", Searched::kDualPipeV},
  };
  for (const auto& [known, which] : kSearching) {
    if (name == known) return searched_work(which, workers, micro_batches);
  }
  return 0;
}

}  // namespace gpipe::internal
