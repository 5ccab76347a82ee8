// measure_contention: how much work slows down beside other work on cores that share caches and
// memory.
#ifndef BALANCE_COSTS_CONTENTION_H_
#define BALANCE_COSTS_CONTENTION_H_

#include <functional>
#include <vector>

namespace gpipe::balance {

struct ContentionOptions {
  // Seconds of each of the two measurements. A call in progress is completed, and at least three
  // calls are measured. Default: 1.
  double seconds = 1;
  // Returns the time in seconds; tests replace it. Default: the steady clock.
  std::function<double()> now;
};

// Returns the median time of `work` while each of `others` is called repeatedly on a thread of its
// own, divided by its median time alone. The result is a value for ExplainOptions::contention. It
// is at least 1: if `work` was faster in company, its time alone was disturbed.
//
// The functions must be safe to call at the same time. For example, each uses its own copy of a
// model, with as many threads per operator as a partition has.
//
// Throws what the functions throw, after all of them have ended.
double measure_contention(const std::function<void()>& work,
                          const std::vector<std::function<void()>>& others,
                          const ContentionOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_CONTENTION_H_
