#include "gpipe/internal/threads/default_generators.h"

namespace gpipe::internal {

// The mutex is never destroyed, because threads may lock it while the process ends.
std::recursive_mutex& default_generators_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

}  // namespace gpipe::internal
