// As gpipe/internal/graphs/capture_watch.cc: a RecordFunction must look as in LibTorch, which is
// built so.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "balance/operator_census.h"

#include <memory>
#include <mutex>

namespace gpipe::balance {
namespace {

struct Seen {
  std::mutex mutex;
  std::set<std::string> names;
};

// Never destroyed: threads may run operators while the process ends.
Seen& seen() {
  static auto* const seen_operators = new Seen;
  return *seen_operators;
}

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& call) {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  seen().names.insert(call.name());
  return nullptr;
}

}  // namespace

OperatorCensus::OperatorCensus() {
  {
    const std::lock_guard<std::mutex> lock(seen().mutex);
    seen().names.clear();
  }
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
}

OperatorCensus::~OperatorCensus() { at::removeCallback(handle_); }

std::set<std::string> OperatorCensus::operators() const {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  return seen().names;
}

}  // namespace gpipe::balance
