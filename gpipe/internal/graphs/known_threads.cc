#include "gpipe/internal/graphs/known_threads.h"

#include <algorithm>
#include <atomic>

namespace gpipe::internal {
namespace {

// A number of the calling thread that, unlike its id, is never given to another thread.
int64_t number_of_this_thread() {
  static std::atomic<int64_t> last{0};
  static thread_local const int64_t number = ++last;
  return number;
}

}  // namespace

bool KnownThreads::has_this() const {
  return std::find(numbers_.begin(), numbers_.end(), number_of_this_thread()) != numbers_.end();
}

bool KnownThreads::add_this() {
  if (has_this()) return true;
  if (numbers_.size() == kMost) numbers_.erase(numbers_.begin());
  numbers_.push_back(number_of_this_thread());
  return false;
}

}  // namespace gpipe::internal
