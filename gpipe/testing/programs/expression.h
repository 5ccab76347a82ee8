// Expression: an expression over the main value `x`, another value `s` and parameters `a` and `b`,
// with its text.
#ifndef GPIPE_TESTING_PROGRAMS_EXPRESSION_H_
#define GPIPE_TESTING_PROGRAMS_EXPRESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/testing/programs/layer.h"

namespace gpipe::testing::programs {

// An expression with its numbers filled in and its parameters chosen, for use in a layer.
struct Expression {
  std::string text;  // without the parameters
  std::function<at::Tensor(at::Tensor x, at::Tensor s, at::Tensor a, at::Tensor b)> compute;
  std::vector<Parameter> parameters;
  bool in_place = false;
  bool fresh = false;       // whether the result is fresh, see Layer
  bool keeps_fresh = true;  // whether `x` itself stays fresh
  bool same = false;        // whether the result is `x` itself
  bool alias = false;       // whether the result shares memory with `x`
};

// An expression that consumes `s` and fits the two samples.
std::optional<Expression> draw_use_of(const State& state, const at::Tensor& s, Random& random);
// An expression that makes one more value from `x`.
Expression draw_extra(const State& state, Random& random);

// A text like "[a = parameter({4})]".
std::string parameters_text(const std::vector<Parameter>& parameters);
// The parameters of a layer. Layers read the list anew in each call, because a pipeline may replace
// parameters by copies (tied/tied_layer.h).
using LayerParameters = std::shared_ptr<std::vector<at::Tensor>>;
LayerParameters make_parameters(const std::vector<Parameter>& parameters, Workshop& workshop);
// `parameters`: as given to make_parameters(). If the workshop says so (names_tied), a parameter
// that another layer has registered is only named.
void register_parameters(torch::nn::Module& module, const LayerParameters& tensors,
                         const std::vector<Parameter>& parameters, Workshop& workshop);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_EXPRESSION_H_
