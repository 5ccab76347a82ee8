// measure_contention: how much work slows down beside other work, on cores that share caches and
// memory.
#ifndef BALANCE_COSTS_CONTENTION_H_
#define BALANCE_COSTS_CONTENTION_H_

#include <functional>
#include <vector>

namespace gpipe::balance {

struct ContentionOptions {
  // Seconds of each of the two measurements; the call in progress is completed, and at least three
  // calls are measured. Default: 1.
  double seconds = 1;
  // The time in seconds; tests bring their own. Default: the steady clock.
  std::function<double()> now;
};

// The median time of `work` while each of `others` is called over and over on a thread of its own,
// divided by its median time alone. ExplainOptions::contention takes it. At least 1: what is faster
// in company was disturbed when it was alone.
//
// The functions must be safe to call at once: copies of a model each, for example, with as many
// threads per operator as a partition has.
//
// Throws what they throw, after all of them have ended.
double measure_contention(const std::function<void()>& work,
                          const std::vector<std::function<void()>>& others,
                          const ContentionOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_CONTENTION_H_
