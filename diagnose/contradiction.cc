#include "diagnose/contradiction.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace gpipe::diagnosis {
namespace {

// The largest share of the step that a partition's work may have. A partition does one thing at a
// time, so its work fits into the step, except for noise.
constexpr double kMostWork = 1.25;     // as a share of the step
constexpr double kMostOverhead = 0.5;  // as a share of the step

constexpr char kAgain[] =
    "Something else ran on this machine, or its devices are not alike: diagnose again, with "
    "nothing else on it.";

std::string ms(double seconds) {
  const double value = seconds * 1e3;
  return absl::StrFormat(std::abs(value) < 99.95 ? "%.3g ms" : "%.0f ms", value);
}

}  // namespace

std::string contradiction(const Diagnosis& diagnosis) {
  size_t most = 0;
  double work = 0;
  for (size_t j = 0; j < diagnosis.partitions.size(); ++j) {
    const PartitionDiagnosis& partition = diagnosis.partitions[j];
    if (partition.work + partition.recompute <= work) continue;
    most = j;
    work = partition.work + partition.recompute;
  }
  if (work > kMostWork * diagnosis.step) {
    return absl::StrFormat(
        "The measurements contradict each other: partition %d alone has %s to do in a step that "
        "takes %s. %s",
        most, ms(work), ms(diagnosis.step), kAgain);
  }
  const double overhead = diagnosis.seconds(Cause::kOverhead);
  const double explained = diagnosis.step - overhead;
  if (overhead < -kMostOverhead * diagnosis.step) {
    return absl::StrFormat(
        "The measurements contradict each other: by its parts a step would take %s, but it takes "
        "%s. %s",
        ms(explained), ms(diagnosis.step), kAgain);
  }
  if (overhead > kMostOverhead * diagnosis.step) {
    // The message names two possible reasons, because layers that take microseconds look the same
    // as another program that ran only during the steps.
    return absl::StrFormat(
        "The measurements contradict each other: the parts explain only %s of a step of %s. %s If "
        "that says the same, the micro-batches are too small for a pipeline: make them larger.",
        ms(explained), ms(diagnosis.step), kAgain);
  }
  return "";
}

std::string disturbance(const command::LoadShares& shares) {
  if (!command::disturbs(shares)) return "";
  return absl::StrFormat(
      "This machine was busy: other work had %.0f %% of the cores' time during the measurements, "
      "and they were idle for %.0f %% only. Diagnose again, with nothing else on it.",
      100 * shares.others, 100 * shares.idle);
}

}  // namespace gpipe::diagnosis
