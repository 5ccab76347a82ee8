// fastest_fit, smallest_fit: the search for a fit of one model. A part of fit() and largest().
#ifndef BALANCE_CHOOSE_FIT_SEARCH_H_
#define BALANCE_CHOOSE_FIT_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/choose/fit.h"
#include "balance/choose/training.h"

namespace gpipe::balance {

// Arguments and errors are those of fit(), whose checks of the devices are done already.
// `scale`: bytes that training needs for each byte of a parameter. `name`: the model's name in the
// progress; may be empty.

// What happens with a model that has fewer layers than there are devices.
enum class FewLayers {
  kRefused,      // c10::ValueError
  kLeaveDevices  // it is fitted on the first devices, one for each layer
};

// The fit with the shortest predicted step; if none fits, the nearest.
Fit fastest_fit(const Training& training, const std::vector<int64_t>& device_bytes,
                const FitOptions& options, double scale, const std::string& name,
                FewLayers few_layers);

// Whether the model fits at all, judged by the first micro-batches. A model with few layers leaves
// devices. `explain`: also find out how much memory is missing if it certainly does not fit.
Fit smallest_fit(const Training& training, const std::vector<int64_t>& device_bytes,
                 const FitOptions& options, double scale, const std::string& name, bool explain);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_FIT_SEARCH_H_
