// RandomStreams: random numbers that depend on what is computed, not on when and where.
//
// LibTorch's CPU generator belongs to the whole process: stages that draw at the same time would
// race for its numbers, and a recompute could not draw again what its forward drew. Inside a
// pipeline, every random operator that was given no generator gets one that is seeded from (step,
// micro-batch, layer, number of the draw). Hence results with a fixed seed do not depend on
// threads, balance, schedule or checkpoint mode. For an operator that takes no generator (fused
// attention), the device's default generator is put into that state. An operator that was given a
// generator gets, in a recompute, a copy of that generator as it was in the forward.
#ifndef GPIPE_INTERNAL_OPERATORS_RANDOM_STREAMS_H_
#define GPIPE_INTERNAL_OPERATORS_RANDOM_STREAMS_H_

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/threads/seen_by_autograd.h"

namespace gpipe::internal {

// A draw in a cell's forward by a function whose forward is not recorded by autograd.
struct DrawRecord {
  uint64_t sequence_nr;  // that of the next graph node at the time of the draw
  int64_t layer;
  int64_t number;  // index of the draw within the layer
};

// While a DrawRecorder is set (RandomStreams::record), a graph of kernels is recorded, which will
// be replayed for other micro-batches. Operators that draw take these generators, one for each
// draw, unseeded.
struct DrawRecorder {
  struct Draw {
    int64_t layer;
    int64_t number;  // index of the draw within the layer
  };
  std::vector<at::Generator> generators;
  std::vector<Draw> draws;  // the draws that were made
};

// The generators that a layer gave to operators in the forward of a checkpointed cell, as they were
// before each draw, so that the recompute draws the same and leaves the layer's own generators
// alone. A value type.
struct GivenGenerators {
  std::vector<at::Generator> states;  // [draw]
  size_t next = 0;                    // the state that the recompute will use next
};

// The generators of one stage or one loop.
//
// Each operator that draws gets a stream of its own, seeded from (step, micro-batch, layer, number
// of the draw within the layer's forward, or within the backward of one of its nodes).
//
// Thread-safety: none.
class RandomStreams {
 public:
  // What decides the numbers of the next draw. A value type.
  struct Place {
    uint64_t seed = 0;
    int64_t layer = -1;
    int64_t number = 0;  // index of the draw
  };
  const Place& place() const { return place_; }
  // From here on, draws are those that followed when place() was `place`.
  void enter(const Place& place) { place_ = place; }

  // From here on, draws belong to this layer's forward in this micro-batch of the step.
  void enter(uint64_t step_seed, int64_t micro_batch, int64_t layer);

  // From here on, draws belong to the backward of one node of the layer, because custom functions
  // and hooks may draw there. `node` numbers the node within the layer, so it does not matter when
  // the other nodes run.
  void enter_backward(uint64_t step_seed, int64_t micro_batch, int64_t layer, uint64_t node);

  // From here on, draws belong to the hooks of a leaf. `leaf` must not depend on the stage in which
  // it accumulates.
  void enter_leaf(uint64_t step_seed, int64_t micro_batch, uint64_t leaf);

  // From here on, draws repeat those of the forward since `record`: a function that computes its
  // forward again in its backward gets the same numbers.
  void repeat(uint64_t step_seed, int64_t micro_batch, const DrawRecord& record);

  // A generator for the next operator that draws, for tensors on `device`.
  const at::Generator& generator(c10::Device device);

  // How often generator() was called.
  int64_t draws() const { return draws_; }
  // How often given(generator) was called.
  int64_t given_draws() const { return given_draws_; }

  // Starts a recording; null ends it. During a recording generator() throws c10::Error for a draw
  // on another device, or if no generator is left.
  void record(DrawRecorder* recorder) { recorder_ = recorder; }
  // Throws c10::Error while something is recorded: numbers drawn from `what` would be the same ones
  // in every replay.
  void check_not_recording(const char* what) const;
  // The seed that generator() would give the generator of this draw.
  static uint64_t seed_of_draw(uint64_t step_seed, int64_t micro_batch,
                               const DrawRecorder::Draw& draw);

  // Returns the generator to draw from instead of `generator`, which the layer gave.
  at::Generator given(const at::Generator& generator);

  // The current RandomStreams of this thread, or null.
  static RandomStreams* current();

 private:
  friend class RandomStreamsScope;

  struct Entry {
    c10::Device device;
    at::Generator generator;
  };

  Place place_;
  int64_t draws_ = 0;
  int64_t given_draws_ = 0;
  DrawRecorder* recorder_ = nullptr;
  std::vector<DrawRecord>* log_ = nullptr;
  GivenGenerators* given_ = nullptr;
  std::vector<Entry> entries_;
};

// Makes `streams` current on this thread (under an InterceptionScope), and restores the previous
// one on exit. Draws under no_grad, like those in a custom function's forward, are recorded in
// `log` unless it is null. `given`, of a checkpointed cell, is filled while is_checkpointing() and
// used while is_recomputing(). `on_autograd_threads`: autograd's own threads that run a node on
// this thread's behalf, as for nodes on accelerators, draw from what is current here, too.
class RandomStreamsScope {
 public:
  explicit RandomStreamsScope(RandomStreams* streams, std::vector<DrawRecord>* log = nullptr,
                              GivenGenerators* given = nullptr, bool on_autograd_threads = false);
  ~RandomStreamsScope();
  RandomStreamsScope(const RandomStreamsScope&) = delete;
  RandomStreamsScope& operator=(const RandomStreamsScope&) = delete;

 private:
  friend class RandomStreams;
  static c10::DebugInfoKind autograd_info() { return c10::DebugInfoKind::TEST_INFO_2; }

  RandomStreams* streams_;
  RandomStreams* former_;
  std::vector<DrawRecord>* former_log_;
  GivenGenerators* former_given_;
  std::optional<SeenByAutogradScope<autograd_info, RandomStreams>> for_autograd_;
};

// A step's seed, drawn from the process's CPU generator, so that the seed follows
// torch::manual_seed.
uint64_t draw_step_seed();

// The seed that torch::manual_seed has given the process's CPU generator last.
uint64_t process_seed();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_RANDOM_STREAMS_H_
