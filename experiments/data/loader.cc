#include "experiments/data/loader.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

namespace gpipe::experiments {
namespace {

constexpr std::size_t kExamples = 3;
// The number of images that a thread claims at once. It is so large that the cost of the lock does
// not matter even for small images, and so small that all threads work on the same batch.
constexpr int64_t kGrain = 16;

}  // namespace

struct Loader::Unreadable {
  void add(int64_t index, const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (indices.insert(index).second && examples.size() < kExamples) examples.push_back(what);
  }

  mutable std::mutex mutex;
  std::set<int64_t> indices;
  std::vector<std::string> examples;
};

// The work of one epoch. Threads claim pieces of batches in order, at most `prefetch` batches
// ahead.
class Loader::Epoch {
 public:
  Epoch(const Dataset& dataset, const LoaderOptions& options, int64_t batches, int64_t epoch,
        Unreadable& unreadable)
      : dataset_(dataset),
        options_(options),
        epoch_(epoch),
        batches_(batches),
        unreadable_(unreadable),
        slots_(static_cast<std::size_t>(options.prefetch)) {
    if (options.shuffle) {
      order_ = random_permutation(dataset.size(), Random({options.seed, ~uint64_t{0}, key(epoch)}));
    }
    for (int64_t i = 0; i < options.workers; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }

  ~Epoch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  std::optional<Batch> next() {
    for (;;) {
      if (taken_ == batches_) return std::nullopt;
      if (options_.workers == 0) {
        Piece piece;
        while (claim_without_waiting(piece)) read(piece);
      }
      Slot slot;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        Slot& ready = slot_of(taken_);
        ready_.wait(lock, [&] { return error_ || (ready.size > 0 && ready.done == ready.size); });
        if (error_) {
          taken_ = batches_;
          stop_ = true;
          std::rethrow_exception(std::exchange(error_, nullptr));
        }
        slot = std::move(ready);
        ready = Slot();
        ++taken_;
      }
      room_.notify_all();
      Batch batch = without_unreadable(std::move(slot));
      if (batch.images.defined()) return batch;
    }
  }

 private:
  struct Slot {
    Batch batch;
    int64_t size = 0;  // 0: the batch is not started
    int64_t claimed = 0;
    int64_t done = 0;
    std::vector<uint8_t> valid;
  };

  // A piece of a batch: its images begin, ..., end - 1.
  struct Piece {
    int64_t batch = 0;
    int64_t begin = 0;
    int64_t end = 0;
    float* pixels = nullptr;  // of the batch
    int64_t* labels = nullptr;
    uint8_t* valid = nullptr;
  };

  static uint64_t key(int64_t number) { return static_cast<uint64_t>(number); }

  Slot& slot_of(int64_t batch) {
    return slots_[static_cast<std::size_t>(batch % options_.prefetch)];
  }

  bool may_claim() const { return claiming_ < std::min(batches_, taken_ + options_.prefetch); }

  // Claims the next piece. Requirements: the lock is held and may_claim() is true.
  Piece claim() {
    Slot& slot = slot_of(claiming_);
    if (slot.size == 0) {
      const ImageShape shape = dataset_.shape();
      slot.size = std::min(options_.batch_size, dataset_.size() - claiming_ * options_.batch_size);
      const at::TensorOptions memory = at::TensorOptions().pinned_memory(options_.pinned);
      slot.batch.images = at::empty({slot.size, shape.channels, shape.height, shape.width},
                                    memory.dtype(at::kFloat));
      slot.batch.labels = at::empty({slot.size}, memory.dtype(at::kLong));
      slot.valid.assign(static_cast<std::size_t>(slot.size), 1);
    }
    Piece piece;
    piece.batch = claiming_;
    piece.begin = slot.claimed;
    piece.end = std::min(slot.size, slot.claimed + kGrain);
    piece.pixels = slot.batch.images.data_ptr<float>();
    piece.labels = slot.batch.labels.data_ptr<int64_t>();
    piece.valid = slot.valid.data();
    slot.claimed = piece.end;
    if (slot.claimed == slot.size) ++claiming_;
    return piece;
  }

  // For a loader without threads: claims a piece of the batch that next() is to return.
  bool claim_without_waiting(Piece& piece) {
    if (claiming_ > taken_) return false;
    piece = claim();
    return true;
  }

  void work() {
    for (;;) {
      Piece piece;
      try {
        {
          std::unique_lock<std::mutex> lock(mutex_);
          room_.wait(lock, [this] { return stop_ || claiming_ == batches_ || may_claim(); });
          if (stop_ || claiming_ == batches_) return;
          piece = claim();
        }
        read(piece);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!error_ && !stop_) error_ = std::current_exception();
        stop_ = true;
        ready_.notify_all();
        room_.notify_all();
        return;
      }
    }
  }

  void read(const Piece& piece) {
    const int64_t pixels_per_image = dataset_.shape().size();
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      if (stopped(i, piece.begin)) return;
      const int64_t position = piece.batch * options_.batch_size + i;
      int64_t index = order_.empty() ? position : order_[static_cast<std::size_t>(position)];
      for (int64_t tries = 0;; ++tries) {
        if (tries == dataset_.size()) {
          throw std::runtime_error("not one image can be read of " + dataset_.describe());
        }
        Random random({options_.seed, key(epoch_), key(index)});
        const ReadResult result = dataset_.read(index, random, piece.pixels + i * pixels_per_image);
        piece.labels[i] = result.label;
        if (result.error.empty()) break;
        unreadable_.add(index, result.error);
        if (!options_.replace_unreadable) {
          piece.valid[i] = 0;
          break;
        }
        index = (index + 1) % dataset_.size();
      }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Slot& slot = slot_of(piece.batch);
    slot.done += piece.end - piece.begin;
    if (slot.done == slot.size) ready_.notify_all();
  }

  // Whether the loader is being stopped. Threads ask this within a piece, because a large image
  // takes milliseconds, and stopping must not wait for the whole piece.
  bool stopped(int64_t i, int64_t begin) {
    if (i == begin) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    return stop_;
  }

  static Batch without_unreadable(Slot slot) {
    std::vector<int64_t> keep;
    for (std::size_t i = 0; i < slot.valid.size(); ++i) {
      if (slot.valid[i] != 0) keep.push_back(static_cast<int64_t>(i));
    }
    if (keep.size() == slot.valid.size()) return std::move(slot.batch);
    if (keep.empty()) return {};
    const at::Tensor rows = at::tensor(keep, at::kLong);
    return {slot.batch.images.index_select(0, rows), slot.batch.labels.index_select(0, rows)};
  }

  const Dataset& dataset_;
  const LoaderOptions options_;
  const int64_t epoch_;
  const int64_t batches_;
  Unreadable& unreadable_;
  std::vector<int64_t> order_;  // empty: in the dataset's order

  std::mutex mutex_;
  std::condition_variable ready_;  // a batch is complete, or there is an error
  std::condition_variable room_;   // a batch was taken, or threads must stop
  std::vector<Slot> slots_;        // batch b is in slots_[b % prefetch]
  int64_t claiming_ = 0;           // the batch whose images are being handed out
  int64_t taken_ = 0;              // batches given to the caller
  bool stop_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)), options_(options), unreadable_(new Unreadable) {
  if (!dataset_) throw std::invalid_argument("the loader needs a dataset");
  if (options.batch_size <= 0 || options.workers < 0 || options.prefetch <= 0) {
    throw std::invalid_argument(
        "the loader needs a batch size and a prefetch of at least 1 and no negative number of "
        "workers, not " +
        std::to_string(options.batch_size) + ", " + std::to_string(options.prefetch) + " and " +
        std::to_string(options.workers));
  }
  if (batches() == 0) {
    throw std::invalid_argument("a batch of " + std::to_string(options.batch_size) +
                                " is larger than the whole dataset (" + dataset_->describe() +
                                "): not one full batch comes out");
  }
}

Loader::~Loader() = default;

int64_t Loader::batches() const {
  const int64_t full = dataset_->size() / options_.batch_size;
  const bool rest = dataset_->size() % options_.batch_size != 0;
  return full + (rest && !options_.drop_last ? 1 : 0);
}

void Loader::start(int64_t epoch) {
  epoch_.reset();
  epoch_ = std::make_unique<Epoch>(*dataset_, options_, batches(), epoch, *unreadable_);
}

std::optional<Batch> Loader::next() { return epoch_ ? epoch_->next() : std::nullopt; }

int64_t Loader::unreadable() const {
  const std::lock_guard<std::mutex> lock(unreadable_->mutex);
  return static_cast<int64_t>(unreadable_->indices.size());
}

std::vector<std::string> Loader::unreadable_examples() const {
  const std::lock_guard<std::mutex> lock(unreadable_->mutex);
  return unreadable_->examples;
}

}  // namespace gpipe::experiments
