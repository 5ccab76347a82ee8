#include "experiments/rows/speed_variant.h"

#include <stdexcept>

#include "gpipe/chunk_sizes.h"

namespace gpipe::experiments {
namespace {

EpochSteps steps(const SpeedVariant& variant, int64_t times, int64_t rows) {
  if (variant.balance.empty()) return {times, {rows}, Checkpoint::kNever};
  EpochSteps result = {times, micro_batch_sizes(rows, variant.chunks), variant.checkpoint};
  if (variant.checkpoint == Checkpoint::kExceptLast) {
    const bool fewer = static_cast<int64_t>(result.micro_batches.size()) < variant.chunks;
    if (fewer) result.checkpoint = Checkpoint::kAlways;
    if (variant.chunks == 1) result.checkpoint = Checkpoint::kNever;
  }
  return result;
}

}  // namespace

std::vector<EpochSteps> steps_of_epoch(const SpeedVariant& variant, int64_t samples) {
  if (samples < 1 || variant.batch_size < 1 || variant.chunks < 1) {
    throw std::invalid_argument(
        variant.name + ": an epoch of " + std::to_string(samples) + " samples in mini-batches of " +
        std::to_string(variant.batch_size) + " and " + std::to_string(variant.chunks) +
        " micro-batches; each must be at least 1");
  }
  std::vector<EpochSteps> result;
  const int64_t whole = samples / variant.batch_size;
  const int64_t rest = samples % variant.batch_size;
  if (whole > 0) result.push_back(steps(variant, whole, variant.batch_size));
  if (rest > 0) result.push_back(steps(variant, 1, rest));
  return result;
}

}  // namespace gpipe::experiments
