// Diagnosis: where the time of a pipeline's step goes, and what to change.
#ifndef DIAGNOSE_DIAGNOSIS_H_
#define DIAGNOSE_DIAGNOSIS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/cut/partition.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe {

// The causes for which a step takes longer than the ideal, in the order in which they are told
// apart.
enum class Cause : uint8_t {
  kSmallMicroBatches,  // a sample takes longer in a micro-batch than in the whole batch
  kImbalance,          // the busiest worker has more to do than the others
  kFillAndDrain,       // workers wait for the first micro-batches, and for the last ones
  kRecompute,          // second forwards
  kTransfers,          // copies between devices
  kSharedCores,        // partitions compute at once on fewer cores, or slow each other down
  kOverhead,           // the rest: the pipeline itself, and what the model above does not know
};

// The cause in words, like "small micro-batches".
const char* to_text(Cause cause);

// The seconds of a step that a cause takes; negative if it saves time.
struct Part {
  Cause cause{};
  double seconds = 0;
};

// A partition's part in a whole step, in seconds and bytes.
struct PartitionDiagnosis {
  balance::LayerRange layers{};
  double work = 0;       // forwards and backwards
  double recompute = 0;  // second forwards
  int64_t memory = 0;    // predicted: see balance::PartitionExplanation::memory
};

// The kind of change that a piece of advice makes.
enum class Change : uint8_t { kChunks, kBalance, kCheckpoints, kSchedule, kSeveral };

const char* to_text(Change change);  // "chunks", "several"

struct Advice {
  Change change{};
  PipelineSetup setup;          // the complete new setup; what does not change is as it is now
  double step = 0;              // predicted seconds
  double speed_up = 1;          // the present step / the predicted one
  std::vector<int64_t> memory;  // predicted bytes, by worker
};

// A plain value.
struct Diagnosis {
  std::string device;  // a name for people
  int64_t rows = 0;    // the rows of the mini-batch
  // The workers of the schedule. The ideal is that many times as fast as one device.
  int64_t workers = 0;
  int64_t micro_batches = 0;
  PipelineSetup setup;  // the present one

  double step = 0;   // measured: the median
  double plain = 0;  // measured: the plain model, the whole batch at once, on one device
  // False if `plain` is the time of the same micro-batches one after another instead (see
  // DiagnoseOptions::run_plain_model). The effect of small micro-batches is then not known.
  bool whole_batch = true;
  double ideal = 0;         // plain / workers
  std::vector<Part> parts;  // what each cause costs; they sum up to step - ideal exactly

  int64_t cores = 0;      // how many partitions can compute at once
  double contention = 1;  // how many times as long an action takes beside others
  int64_t binding = 0;    // the partition with the most to do, recomputes included
  std::vector<PartitionDiagnosis> partitions;
  // Predicted bytes of each worker, for all of its partitions together.
  std::vector<int64_t> memory;

  // Says that the machine was busy, or why the measurements cannot all be true, and what to do;
  // otherwise empty. With a warning there is no advice, and the parts mean nothing.
  std::string warning;

  int64_t memory_limit = 0;    // bytes of each worker; 0: none was given
  std::vector<Advice> advice;  // sorted by gain, the largest first

  double seconds(Cause cause) const;
};

}  // namespace gpipe

#endif  // DIAGNOSE_DIAGNOSIS_H_
