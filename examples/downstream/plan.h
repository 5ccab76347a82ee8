#ifndef DOWNSTREAM_PLAN_H_
#define DOWNSTREAM_PLAN_H_

#include <cstdint>

// How many micro-batches the fullest stage holds at once: under GPipe's order and under 1F1B.
struct Plan {
  int64_t gpipe;
  int64_t one_f_one_b;
};

Plan plan(int64_t stages, int64_t micro_batches);

#endif  // DOWNSTREAM_PLAN_H_
