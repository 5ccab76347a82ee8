#include "gpipe/internal/threads/default_generators.h"

namespace gpipe::internal {

// Never destroyed: threads may use it while the process ends.
std::recursive_mutex& default_generators_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

}  // namespace gpipe::internal
