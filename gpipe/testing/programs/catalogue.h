// The catalogue of layers: each function draws one that may fit the state; whoever draws tries it
// out.
#ifndef GPIPE_TESTING_PROGRAMS_CATALOGUE_H_
#define GPIPE_TESTING_PROGRAMS_CATALOGUE_H_

#include <optional>

#include "gpipe/testing/programs/layer.h"

namespace gpipe::testing::programs {

// A module of torch::nn, or a small block of them; on the main value where there are several.
std::optional<Draw> draw_module(const State& state, Random& random);
std::optional<Draw> draw_linear(const State& state, Random& random);

// A function with up to two parameters: operators, views, in-place, custom autograd functions.
std::optional<Draw> draw_function(const State& state, Random& random);

// Adds a value beside the main one, uses one up, exchanges them or changes the type they travel in.
std::optional<Draw> draw_values(const State& state, Random& random);
// The one that uses up the last of several values, or null for a single one.
std::optional<Draw> draw_use(const State& state, Random& random);

// Stashes, pops, or both.
std::optional<Draw> draw_skip(const State& state, Random& random);
std::optional<Draw> draw_pop(const State& state, Random& random);

// A whole module that stands in several layers.
std::optional<Draw> draw_shared_module(const State& state, Random& random);

// What takes integers (rows, 4) in the first layer.
Draw draw_embedding(Random& random);

// The same layer with frozen parameters or with hooks on them.
Layer with_frozen_parameters(Layer layer, bool all);
Layer with_parameter_hooks(Layer layer, int64_t counter, bool scale);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_CATALOGUE_H_
