#include "diagnose/diagnosis.h"

namespace gpipe {

const char* to_text(Cause cause) {
  switch (cause) {
    case Cause::kSmallMicroBatches:
      return "small micro-batches";
    case Cause::kImbalance:
      return "imbalance";
    case Cause::kFillAndDrain:
      return "fill and drain";
    case Cause::kRecompute:
      return "recompute";
    case Cause::kTransfers:
      return "transfers";
    case Cause::kSharedCores:
      return "shared cores";
    case Cause::kOverhead:
      return "overhead";
  }
  return "?";
}

const char* to_text(Change change) {
  switch (change) {
    case Change::kChunks:
      return "chunks";
    case Change::kBalance:
      return "balance";
    case Change::kCheckpoints:
      return "checkpoints";
    case Change::kSchedule:
      return "schedule";
    case Change::kSeveral:
      return "several";
  }
  return "?";
}

double Diagnosis::seconds(Cause cause) const {
  double sum = 0;
  for (const Part& part : parts) {
    if (part.cause == cause) sum += part.seconds;
  }
  return sum;
}

}  // namespace gpipe
