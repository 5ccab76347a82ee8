#include "balance/choose/fit.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "balance/choose/fit_memory.h"
#include "balance/choose/fit_search.h"
#include "balance/memory/param_scale.h"

namespace gpipe::balance {
namespace {

void check(const std::vector<int64_t>& device_bytes, const FitOptions& options) {
  TORCH_CHECK_VALUE(!device_bytes.empty(), "no devices were given; give the bytes of each");
  TORCH_CHECK_VALUE(options.margin() >= 0, "margin must be at least 0 bytes, got ",
                    options.margin());
  for (size_t d = 0; d < device_bytes.size(); ++d) {
    TORCH_CHECK_VALUE(device_bytes[d] > 0, "device ", d, " has ", device_bytes[d],
                      " bytes; give numbers above 0");
    TORCH_CHECK_VALUE(device_bytes[d] > options.margin(), "device ", d, " has ", device_bytes[d],
                      " bytes, all of which the margin of ", options.margin(), " takes");
  }
}

}  // namespace

Fit fit(const Training& training, const std::vector<int64_t>& device_bytes,
        const FitOptions& options) {
  check(device_bytes, options);
  return fastest_fit(training, device_bytes, options,
                     param_scale(options.optimizer(), options.zero_grad()), "",
                     FewLayers::kRefused);
}

Largest largest(const Family& family, int64_t most, const std::vector<int64_t>& device_bytes,
                const FitOptions& options) {
  check(device_bytes, options);
  TORCH_CHECK_VALUE(family != nullptr, "the family is empty; give a function of its members");
  TORCH_CHECK_VALUE(most >= 1, "most must be at least 1, the first member, got ", most);
  const double scale = param_scale(options.optimizer(), options.zero_grad());
  int64_t plans = 0;
  const auto name = [](int64_t member) { return absl::StrCat("member ", member); };
  const auto try_member = [&](int64_t member, bool explain) {
    Fit fit = smallest_fit(family(member), device_bytes, options, scale, name(member), explain);
    plans += fit.plans;
    return fit;
  };

  // `fits` is the largest member that is known to fit, `over` the smallest that does not.
  int64_t fits = 0;
  int64_t over = 1;
  Fit of_over;
  const auto try_next = [&](int64_t member) {
    Fit fit = try_member(member, /*explain=*/false);
    const bool does = fit.fits;
    if (!does) of_over = std::move(fit);  // the last that fails is `over` in the end
    return does;
  };
  while (over <= most && try_next(over)) {
    fits = over;
    over = over <= most / 2 ? 2 * over : fits == most ? most + 1 : most;
  }
  while (over - fits > 1) {
    const int64_t middle = fits + (over - fits) / 2;
    (try_next(middle) ? fits : over) = middle;
  }

  Largest result;
  result.next_fit = std::move(of_over);
  // A member that was refused without a plan may fit when it is planned.
  for (; over <= most && result.next_fit.plan.devices.empty(); fits = over++) {
    result.next_fit = try_member(over, /*explain=*/true);
    if (!result.next_fit.fits) break;
    result.next_fit = Fit();
  }
  // So far only the first micro-batches were planned. With all of them a member may take more than
  // the devices have; then the next smaller one is tried.
  for (; fits > 0; over = fits--) {
    Fit found = fastest_fit(family(fits), device_bytes, options, scale, name(fits),
                            FewLayers::kLeaveDevices);
    plans += found.plans;
    if (found.fits) {
      result.member = fits;
      result.fit = std::move(found);
      break;
    }
    result.next_fit = std::move(found);
  }
  if (over <= most) {
    result.next = over;
  } else {
    result.next_fit = Fit();
  }
  result.fit.plans = plans;
  return result;
}

MemoryPlanOptions memory_options(const Fit& fit, const std::vector<int64_t>& shared_inputs,
                                 const FitOptions& options) {
  return MemoryPlanOptions(fit.balance)
      .chunks(fit.chunks)
      .shared_inputs(shared_inputs)
      .checkpoint(fit.checkpoint)
      .deferred_batch_norm(options.deferred_batch_norm())
      .schedule(options.schedule())
      .optimizer(options.optimizer())
      .zero_grad(options.zero_grad());
}

}  // namespace gpipe::balance
