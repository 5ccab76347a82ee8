// SpeedVariant: a run of a published speed table, and the steps that an epoch of it has.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_VARIANT_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_VARIANT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint.h"

namespace gpipe::experiments {

// Published figures of a run. A text is empty if the figure was not published.
struct SpeedFigures {
  std::string throughput = {};  // torchgpipe's, images per second
  std::string torchgpipe = {};  // torchgpipe's speed-up
  std::string huang = {};       // the speed-up of Huang et al.
  // The figures of another run of torchgpipe, by a script in its repository.
  std::string script_throughput = {};
  std::string script = {};  // the script's speed-up
};

// A run as it was published.
struct SpeedVariant {
  std::string name;
  int64_t batch_size = 0;
  int64_t chunks = 1;
  std::vector<int64_t> balance = {};  // empty: the plain network
  SpeedFigures published = {};
  Checkpoint checkpoint = Checkpoint::kExceptLast;
};

// Steps of an epoch that are alike.
struct EpochSteps {
  int64_t times = 0;
  std::vector<int64_t> micro_batches;  // the rows of each micro-batch
  Checkpoint checkpoint = Checkpoint::kNever;
};

// The steps of an epoch of `samples`: whole mini-batches, then a shorter one for the rest, each cut
// as torchgpipe does (Tensor::chunk). The plain network runs a mini-batch as a whole.
//
// The mode is that of torchgpipe, which checkpoints micro-batch i if i < chunks - 1: where a
// mini-batch gives fewer micro-batches than chunks, kExceptLast checkpoints all of them, and with
// one chunk none.
//
// Throws std::invalid_argument for counts below 1.
std::vector<EpochSteps> steps_of_epoch(const SpeedVariant& variant, int64_t samples);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_VARIANT_H_
