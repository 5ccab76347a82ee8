// Loader: makes batches of tensors from a dataset, on threads of its own and ahead of the training.
#ifndef GPIPE_EXPERIMENTS_DATA_LOADER_H_
#define GPIPE_EXPERIMENTS_DATA_LOADER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/data/dataset.h"

namespace gpipe::experiments {

struct LoaderOptions {
  int64_t batch_size = 1;
  // Use another order in every epoch. Default: false.
  bool shuffle = false;
  // Leave out a last batch that is not full. Default: false.
  bool drop_last = false;
  // The number of threads that read images; with 0, next() reads them. Default: 1.
  int64_t workers = 1;
  // The maximum number of batches that are made ahead, including the one being taken. It limits the
  // memory that is spent. Default: 4.
  int64_t prefetch = 4;
  // The seed of order and augmentation, which depend only on (seed, epoch, index), never on the
  // threads.
  uint64_t seed = 0;
  // If an image cannot be read, either the next readable one takes its place, or the batch goes
  // without it. The first is for training, because the batch stays full; the second is for
  // validation, because no image is counted twice. Default: false, goes without it.
  bool replace_unreadable = false;
  // Batches lie in page-locked memory, so that copies to a CUDA device can overlap. Default: false.
  bool pinned = false;
};

struct Batch {
  at::Tensor images;  // float, [batch, channels, height, width]
  at::Tensor labels;  // int64, [batch]
};

// The worker threads use no ATen operator that would start OpenMP threads; they stop promptly when
// the loader is destroyed or restarted.
//
// Thread-safety: to be used by one thread at a time.
//
// Example:
//   Loader loader(dataset, options);
//   loader.start(epoch);
//   while (std::optional<Batch> batch = loader.next()) train(batch->images, batch->labels);
class Loader {
 public:
  // Throws std::invalid_argument for meaningless numbers, and if there would be no batch at all
  // (drop_last with a batch larger than the dataset).
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The number of batches of one epoch.
  int64_t batches() const;

  // Begins epoch `epoch`; abandons one in progress.
  void start(int64_t epoch);

  // The next batch, or nothing at the end of the epoch or before `start`. An exception of the
  // dataset is thrown here; the epoch is then over. Throws std::runtime_error if not a single image
  // is readable.
  std::optional<Batch> next();

  // How many different images could not be read since the loader was made, and the messages of the
  // first few of them.
  int64_t unreadable() const;
  std::vector<std::string> unreadable_examples() const;

 private:
  class Epoch;
  struct Unreadable;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::unique_ptr<Unreadable> unreadable_;
  std::unique_ptr<Epoch> epoch_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_DATA_LOADER_H_
