// Draws layers that stash and pop.

#include <ATen/ops/randn.h>

#include "gpipe/internal/tensors/value.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/programs/catalog.h"
#include "gpipe/testing/programs/expression.h"
#include "skip/skippable.h"

namespace gpipe::testing::programs {
namespace {

using at::Tensor;

// The function of a layer. It takes the popped tensors and the layer's values, returns the new
// values, and sets the tensors that are stashed.
using SkipBody = std::function<Tensors(const Tensors& popped, Tensors values, Tensors& stashed)>;

template <typename Value>
struct SkipLayerImpl : torch::nn::Module, skip::Skippable {
  SkipLayerImpl(std::vector<std::string> stashes, std::vector<std::string> pops, SkipBody body)
      : Skippable(std::move(stashes), std::move(pops)), body(std::move(body)) {}

  Value forward(Value value) {
    Tensors popped;
    for (const std::string& name : pops()) {
      popped.push_back(copies ? own_copy(pop(name)) : pop(name));
    }
    Tensors stashed;
    Tensors values;
    if constexpr (std::is_same_v<Value, Tensor>) {
      values.push_back(std::move(value));
    } else {
      values = std::move(value);
    }
    values = body(popped, std::move(values), stashed);
    for (size_t k = 0; k < stashed.size(); ++k) stash(stashes()[k], std::move(stashed[k]));
    if constexpr (std::is_same_v<Value, Tensor>) {
      return std::move(values[0]);
    } else {
      return values;
    }
  }

  SkipBody body;
  bool copies = false;
};

std::string name_of(const OpenSkip& skip) {
  // A skip in a namespace of its own may have the same name as other skips.
  return skip.isolated ? "skip" : "skip_" + std::to_string(skip.number);
}

std::string text_of(const OpenSkip& skip) {
  return "\"" + name_of(skip) + "\"" +
         (skip.isolated ? " in namespace " + std::to_string(skip.number) : "");
}

template <typename Value>
torch::nn::AnyModule make_skip_layer(Workshop& workshop, const std::vector<OpenSkip>& stashes,
                                     const std::vector<OpenSkip>& pops, SkipBody body) {
  std::vector<std::string> stash_names;
  std::vector<std::string> pop_names;
  for (const OpenSkip& skip : stashes) stash_names.push_back(name_of(skip));
  for (const OpenSkip& skip : pops) pop_names.push_back(name_of(skip));
  auto module = std::make_shared<SkipLayerImpl<Value>>(stash_names, pop_names, std::move(body));
  module->copies = workshop.copies_skips;
  for (const std::vector<OpenSkip>* side : {&stashes, &pops}) {
    for (const OpenSkip& skip : *side) {
      if (skip.isolated) module->isolate(workshop.namespaces[skip.number], {name_of(skip)});
    }
  }
  return torch::nn::AnyModule(module);
}

std::function<torch::nn::AnyModule(Workshop&)> skip_layer(
    ValueKind kind, std::vector<OpenSkip> stashes, std::vector<OpenSkip> pops,
    std::vector<Parameter> parameters,
    std::function<Tensors(const Tensors&, Tensors, Tensors&, const Tensors&)> body) {
  for (OpenSkip& skip : stashes) skip.sample.reset();
  for (OpenSkip& skip : pops) skip.sample.reset();
  return [=](Workshop& workshop) {
    const LayerParameters tensors = make_parameters(parameters, workshop);
    SkipBody bound = [body, tensors](const Tensors& popped, Tensors values, Tensors& stashed) {
      Tensors now = *tensors;
      now.resize(2);
      return body(popped, std::move(values), stashed, now);
    };
    torch::nn::AnyModule module =
        kind == ValueKind::kTensor
            ? make_skip_layer<Tensor>(workshop, stashes, pops, std::move(bound))
            : make_skip_layer<Tensors>(workshop, stashes, pops, std::move(bound));
    register_parameters(*module.ptr(), tensors, parameters, workshop);
    return module;
  };
}

bool travels(const State& state) {
  return state.kind == ValueKind::kTensor || state.kind == ValueKind::kTensors;
}

std::string begin(const State& state, const std::vector<Parameter>& parameters) {
  return parameters_text(parameters) + "(" + argument_text(state.kind) + ") { " +
         (state.kind == ValueKind::kTensor ? "" : "auto& x = v[0]; ");
}

std::optional<Draw> draw_stash(const State& state, Random& random) {
  const Expression what = draw_extra(state, random);
  OpenSkip skip{state.next_number, once_in(random, 2), {}};
  const bool on = once_in(random, 2);
  // A parameter that would be a new tied one is not tied here, because it would need an entry in
  // the state.
  std::vector<Parameter> parameters = what.parameters;
  for (Parameter& parameter : parameters) {
    if (parameter.tied >= static_cast<int64_t>(state.tied_shapes.size())) parameter.tied = -1;
  }
  // Computes a sample of the stashed value, with random parameters of the right shapes. Later draws
  // use the sample to find a use of the value that fits.
  Tensors tensors;
  for (const Parameter& parameter : parameters) tensors.push_back(at::randn(parameter.shape));
  tensors.resize(2);
  try {
    skip.sample = what.compute(state.main().clone(), {}, tensors[0], tensors[1]);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  Layer layer;
  layer.text = begin(state, parameters) + "stash(" + text_of(skip) + ", " + what.text +
               "); return " +
               (on                                 ? "x * 2"
                : state.kind == ValueKind::kTensor ? "x"
                                                   : "v") +
               "; }";
  layer.make =
      skip_layer(state.kind, {skip}, {}, parameters,
                 [what, on](const Tensors&, Tensors v, Tensors& stashed, const Tensors& tensors) {
                   stashed.push_back(what.compute(v[0], {}, tensors[0], tensors[1]));
                   if (on) v[0] = v[0] * 2;
                   return v;
                 });
  layer.fresh = on || (state.fresh && what.keeps_fresh);
  layer.spreads = what.same && !on;
  layer.aliases = what.alias && !on;
  return Draw{std::move(layer), [skip](State& after) {
                ++after.next_number;
                after.skips.push_back(skip);
              }};
}

}  // namespace

std::optional<Draw> draw_pop(const State& state, Random& random) {
  if (state.skips.empty() || !travels(state)) return std::nullopt;
  const size_t index =
      static_cast<size_t>(pick(random, 0, static_cast<int64_t>(state.skips.size()) - 1));
  const OpenSkip skip = state.skips[index];
  std::optional<Expression> use = draw_use_of(state, skip.sample, random);
  if (!use) return std::nullopt;
  for (Parameter& parameter : use->parameters) {
    if (parameter.tied >= static_cast<int64_t>(state.tied_shapes.size())) parameter.tied = -1;
  }
  // The use is tried here, because a failing pop would have removed the skip from the trial model.
  Tensors tensors;
  for (const Parameter& parameter : use->parameters) tensors.push_back(at::randn(parameter.shape));
  tensors.resize(2);
  try {
    (void)use->compute(state.main().clone(), skip.sample, tensors[0], tensors[1]);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  const bool both = once_in(random, 4);  // whether the layer also stashes its result
  // The new skip gets a namespace of its own only if the popped one has none, because a layer can
  // use a name in one namespace only.
  OpenSkip next{state.next_number, !skip.isolated && once_in(random, 2), {}};
  Layer layer;
  layer.text = begin(state, use->parameters) + "Tensor s = pop(" + text_of(skip) +
               "); x = " + use->text + "; " +
               (both ? "stash(" + text_of(next) + ", x.sin()); " : "") +
               (state.kind == ValueKind::kTensor ? "return x; }" : "return v; }");
  layer.make = skip_layer(state.kind, both ? std::vector<OpenSkip>{next} : std::vector<OpenSkip>{},
                          {skip}, use->parameters,
                          [use = *use, both](const Tensors& popped, Tensors v, Tensors& stashed,
                                             const Tensors& tensors) {
                            v[0] = use.compute(std::move(v[0]), popped[0], tensors[0], tensors[1]);
                            if (both) stashed.push_back(v[0].sin());
                            return v;
                          });
  layer.in_place = use->in_place;
  layer.fresh = use->fresh && !both;
  return Draw{std::move(layer), [index, both, next](State& after) {
                after.skips.erase(after.skips.begin() + static_cast<int64_t>(index));
                if (!both) return;
                ++after.next_number;
                after.skips.push_back(next);
                after.skips.back().sample = after.main().sin();
              }};
}

std::optional<Draw> draw_skip(const State& state, Random& random) {
  if (!travels(state)) return std::nullopt;
  if (state.skips.size() >= 3 || (!state.skips.empty() && once_in(random, 2))) {
    return draw_pop(state, random);
  }
  return draw_stash(state, random);
}

}  // namespace gpipe::testing::programs
