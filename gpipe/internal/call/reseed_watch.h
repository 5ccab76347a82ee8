// ReseedWatch: notices that LibTorch's generator was seeded during a run.
#ifndef GPIPE_INTERNAL_CALL_RESEED_WATCH_H_
#define GPIPE_INTERNAL_CALL_RESEED_WATCH_H_

#include <atomic>
#include <cstdint>

#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/runtime/warning_log.h"

namespace gpipe::internal {

// Warns, once in a process, that LibTorch's generator was seeded during a run. The watch cannot
// tell whether a layer or another thread of the caller did so.
class ReseedWatch {
 public:
  ReseedWatch() = default;
  ~ReseedWatch() {
    static std::atomic<bool> told{false};
    if (process_seed() == before_ || told.exchange(true)) return;
    log_warning(
        "LibTorch's CPU generator was seeded (torch::manual_seed) while the pipeline ran. Seeding "
        "in a layer or a loss function does not change what is drawn there, because layers draw "
        "from the pipeline's own generators. It seeds the generator from which later calls take "
        "their seed, so with the same number each later call draws the same. Seed between calls "
        "(docs/guide/10-random-numbers.md)");
  }
  ReseedWatch(const ReseedWatch&) = delete;
  ReseedWatch& operator=(const ReseedWatch&) = delete;

 private:
  const uint64_t before_ = process_seed();
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_RESEED_WATCH_H_
