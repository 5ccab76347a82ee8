// NDEBUG as in gpipe/internal/graphs/capture_watch.cc: LibTorch is built with it, and a
// RecordFunction must have the same layout here.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "balance/memory/operator_census.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <mutex>
#include <string>

#include "interception/recorded_inputs.h"

namespace gpipe::balance {
namespace {

struct Seen {
  std::mutex mutex;
  std::set<std::string> names;
  std::set<std::string> calls;
};

// How many operators run within each other on this thread.
thread_local int depth = 0;

// `Seen` is never destroyed, because threads may still run operators while the process ends.
Seen& seen() {
  static auto* const seen_operators = new Seen;
  return *seen_operators;
}

// Returns "(bfloat16)" or "(float16)" if an argument has a type below single precision, otherwise
// an empty text.
std::string lower_precision(const at::RecordFunction& call) {
  for (const c10::IValue& input : internal::recorded_inputs(call)) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    if (input.toTensor().scalar_type() == c10::kBFloat16) return "(bfloat16)";
    if (input.toTensor().scalar_type() == c10::kHalf) return "(float16)";
  }
  return "";
}

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& call) {
  const std::string name = call.name();
  const std::string lower = lower_precision(call);
  // Nodes of autograd and functions of the user are recorded, too, but are not operators. What they
  // call counts as called by the model.
  const bool outermost = call.operator_name().has_value() && depth++ == 0;
  const std::lock_guard<std::mutex> lock(seen().mutex);
  seen().names.insert(name);
  if (outermost) seen().calls.insert(name);
  if (!lower.empty()) seen().names.insert(name + lower);
  return nullptr;
}

void leave(const at::RecordFunction& call, at::ObserverContext* /*context*/) {
  if (call.operator_name().has_value()) --depth;
}

}  // namespace

OperatorCensus::OperatorCensus() {
  {
    const std::lock_guard<std::mutex> lock(seen().mutex);
    seen().names.clear();
    seen().calls.clear();
  }
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&note, &leave)
                                      .needsInputs(true)
                                      .scopes({at::RecordScope::FUNCTION}));
}

OperatorCensus::~OperatorCensus() { at::removeCallback(handle_); }

std::set<std::string> OperatorCensus::operators() const {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  return seen().names;
}

std::set<std::string> OperatorCensus::calls() const {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  return seen().calls;
}

}  // namespace gpipe::balance
