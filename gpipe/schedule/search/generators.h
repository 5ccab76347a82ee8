// Generators: the known schedules for several stages on a worker and for split backwards.
//
// The comment of each generator names its source. docs/guide/20-which-schedule.md says which to use
// when, and docs/design/schedule.md how they are made here. Schedule::gpipe and
// Schedule::one_f_one_b are in schedule.h.
#ifndef GPIPE_SCHEDULE_SEARCH_GENERATORS_H_
#define GPIPE_SCHEDULE_SEARCH_GENERATORS_H_

#include <cstdint>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {

// All generators:
//
// - take any number of workers p, stages per worker v and micro-batches m of at least 1, fewer
//   micro-batches than workers included;
// - give ascending schedules (ScheduleFacts::ascending), so all of them give the same bits;
// - are deterministic;
// - throw std::invalid_argument for counts below 1, for more than 2^24 cells, and for costs that
//   are negative or not finite.
//
// "Holds n" means that a worker has at most n stage x micro-batch pairs between their forward and
// the end of their backward.

// Fill-drain: all forwards, and then all backwards in the order 0 .. m-1 (Schedule::gpipe has the
// order m-1 .. 0). Holds m.
Schedule fill_drain(int64_t stages, int64_t micro_batches);

// One forward, one backward over stages in a loop, stage s on worker s mod p (Narayanan et al.,
// "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021). With v
// stages a worker the bubble is v times shorter than 1F1B's, and there are v times as many
// transfers. Micro-batches go in groups of p or more, as even as possible. Holds (v+1)p - 1 if m is
// a multiple of p. With v = 1 it is 1F1B.
Schedule interleaved(int64_t workers, int64_t v, int64_t micro_batches);

// Breadth first: each stage of the loop takes all micro-batches before the next stage begins
// (Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2023). It is as fast as interleaved, leaves
// the most time for transfers, and holds v m.
Schedule looped_breadth_first(int64_t workers, int64_t v, int64_t micro_batches);

// Interleaved with split backwards: worker r runs its k-th weight gradient right after its (k+r)-th
// input gradient. Holds v p if m is a multiple of p.
Schedule zero_bubble_interleaved(int64_t workers, int64_t v, int64_t micro_batches);

// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): 1F1B with split backwards. It has a
// third of 1F1B's bubble at the same memory. Holds p.
Schedule zb_h1(int64_t stages, int64_t micro_batches);

// The costs for which the generators below make their schedules.
struct GeneratorCosts {
  StageCost stage = {1.0, 2.0, 1.0, 1.0};
  double transfer = 0.0;  // between workers
};

// ZB-H2 (the same paper): twice the memory, and nothing idle after filling. Holds 2p - 1.
Schedule zb_h2(int64_t stages, int64_t micro_batches, const GeneratorCosts& costs = {});

// ZB-V, V-Half and V-Min (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024): 2p
// stages in a V (Placement::v_shape), split backwards. They hold 2p (as much as 1F1B, whose stages
// are twice as large), p + 2 and about 2p/3 + 2: the less they hold, the more their workers idle.
// Here they are the best orders that a search finds within that memory, so they take longer to make
// than the others (seconds for 16 workers).
Schedule zb_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs = {});
Schedule v_half(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs = {});
Schedule v_min(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs = {});

// DualPipe's half ("Cut-in-half", after DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, and its
// published code): 2p stages in a V, with most backwards whole. Holds 2p + 1. Its rules need at
// least 2p micro-batches. With fewer, it is the schedule for 2p without the surplus ones, or the
// result of a search within the same memory if that is faster.
Schedule dualpipe_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs = {});

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_SEARCH_GENERATORS_H_
