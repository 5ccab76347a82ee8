#include "balance/choose/pipeline_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>

#include "absl/strings/str_format.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/schedule/follows_at_once.h"

namespace gpipe::balance {
namespace {

// The relative difference of two sums of the same numbers is below this.
constexpr double kRounding = 1e-9;

}  // namespace

bool operator==(const PipelinePlan& a, const PipelinePlan& b) {
  return a.model == b.model && a.profiled_on == b.profiled_on && a.autocast == b.autocast &&
         a.deferred_batch_norm == b.deferred_batch_norm && a.rows == b.rows &&
         a.balance == b.balance && a.chunks == b.chunks && a.shared_inputs == b.shared_inputs &&
         a.checkpoints == b.checkpoints && a.schedule_name == b.schedule_name &&
         a.schedule == b.schedule && a.step == b.step && a.lower_bound == b.lower_bound &&
         a.devices == b.devices;
}

void check_plan_value(const PipelinePlan& plan, const std::string& prefix) {
  const auto fail = [&](const std::string& what) { throw std::invalid_argument(prefix + what); };
  const auto count = [](size_t size) { return static_cast<int64_t>(size); };
  const auto match = [&](const char* what, size_t size, int64_t expected, const char* parts) {
    if (count(size) == expected) return;
    fail(std::string(what) + " has " + std::to_string(size) + " values, but the schedule has " +
         std::to_string(expected) + " " + parts);
  };
  match("balance", plan.balance.size(), plan.schedule.stages(), "stages");
  match("checkpoints", plan.checkpoints.size(), plan.schedule.stages(), "stages");
  match("devices", plan.devices.size(), plan.schedule.workers(), "workers");
  for (size_t j = 0; j < plan.balance.size(); ++j) {
    if (plan.balance[j] >= 1) continue;
    fail("balance[" + std::to_string(j) + "] is " + std::to_string(plan.balance[j]) +
         ", expected at least one layer for each partition");
  }
  if (plan.rows < 1) fail("rows is " + std::to_string(plan.rows) + ", expected at least 1");
  if (plan.chunks < 1 ||
      chunk_sizes(plan.rows, plan.chunks).micro_batches != plan.schedule.micro_batches()) {
    fail(std::to_string(plan.rows) + " rows in " + std::to_string(plan.chunks) +
         " chunks do not make the schedule's " + std::to_string(plan.schedule.micro_batches()) +
         " micro-batches");
  }
  for (const int64_t input : plan.shared_inputs) {
    if (input < 0) fail("shared_inputs has " + std::to_string(input) + ", expected at least 0");
    if (std::count(plan.shared_inputs.begin(), plan.shared_inputs.end(), input) > 1) {
      fail("shared_inputs has " + std::to_string(input) + " twice; give each input once");
    }
  }
  for (const double seconds : {plan.step, plan.lower_bound}) {
    if (!std::isfinite(seconds) || seconds < 0) {
      fail(
          absl::StrFormat("step or lower_bound is %.17g, expected seconds of at least 0", seconds));
    }
  }
  if (plan.lower_bound > plan.step * (1 + kRounding)) {
    fail(absl::StrFormat("lower_bound is %.17g s, above the step of %.17g s", plan.lower_bound,
                         plan.step));
  }
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const PlannedDevice& device = plan.devices[d];
    const auto wrong = [&](const std::string& what) {
      fail("devices[" + std::to_string(d) + "] " + what + ": limit " +
           std::to_string(device.limit) + ", live " + std::to_string(device.live) + ", reserved " +
           std::to_string(device.reserved) + ", predicted " + std::to_string(device.predicted));
    };
    if (device.limit < 0 || device.live < 0 || device.reserved < -1 || device.predicted < -1) {
      wrong("has a negative number of bytes");
    }
    if (device.reserved >= 0 && device.reserved < device.live) wrong("reserves less than is live");
    if (device.limit > 0 && std::max(device.live, device.reserved) > device.limit) {
      wrong("takes more than its limit");
    }
  }
  internal::check_whole_step(plan.schedule, prefix);
  try {
    (void)plan.schedule.verify(Sends::kBuffered);
    (void)plan.placement();
  } catch (const std::invalid_argument& error) {
    fail(std::string("the schedule: ") + error.what());
  }
}

}  // namespace gpipe::balance
