#include "gpipe/distributed/meet/batch_threads.h"

#include <sched.h>

namespace gpipe::distributed {
namespace {

constexpr pid_t kThisThread = 0;

bool set_policy(int policy) {
  const sched_param param{};  // both policies have priority 0; nice values stay
  return sched_setscheduler(kThisThread, policy, &param) == 0;
}

}  // namespace

BatchThreads::BatchThreads()
    : is_changed_(sched_getscheduler(kThisThread) == SCHED_OTHER && set_policy(SCHED_BATCH)) {}

BatchThreads::~BatchThreads() {
  if (is_changed_) set_policy(SCHED_OTHER);
}

}  // namespace gpipe::distributed
