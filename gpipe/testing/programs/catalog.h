// Catalog: draws the layers of random programs.
//
// Each function draws a layer that may fit the state; the caller tries it out.
#ifndef GPIPE_TESTING_PROGRAMS_CATALOG_H_
#define GPIPE_TESTING_PROGRAMS_CATALOG_H_

#include <cstdint>
#include <optional>

#include "gpipe/testing/programs/layer.h"

namespace gpipe::testing::programs {

// A module of torch::nn, or a small block of such modules. If there are several values, the module
// is applied to the main one.
std::optional<Draw> draw_module(const State& state, Random& random);
std::optional<Draw> draw_linear(const State& state, Random& random);

// A function with up to two parameters: operators, views, in-place, custom autograd functions.
std::optional<Draw> draw_function(const State& state, Random& random);

// A function with two parameters whose gradients LibTorch lets have the same memory.
std::optional<Draw> draw_shared_gradients(const State& state, Random& random);

// A layer that adds a value beside the main one, consumes one, exchanges two, or changes the type
// in which they travel.
std::optional<Draw> draw_values(const State& state, Random& random);
// The layer that consumes the last of several values; null if there is only one value.
std::optional<Draw> draw_use(const State& state, Random& random);

// A layer that stashes, pops, or does both.
std::optional<Draw> draw_skip(const State& state, Random& random);
std::optional<Draw> draw_pop(const State& state, Random& random);

// A whole module that is used in several layers.
std::optional<Draw> draw_shared_module(const State& state, Random& random);

// The first layer for integer inputs (rows, 4).
Draw draw_embedding(Random& random);

// The same layer with frozen parameters or with hooks on them.
Layer with_frozen_parameters(Layer layer, bool all);
Layer with_parameter_hooks(Layer layer, int64_t counter, bool scale, bool in_place);

// A mode that a layer may set for its thread while it runs.
enum class OwnState : uint8_t { kAutocast, kAutocastWithCache, kRoundsDownward };
// The same layer, which sets `state` while it runs. The layer must neither stash nor pop.
Layer with_own_state(Layer layer, OwnState state);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_CATALOG_H_
