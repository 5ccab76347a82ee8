// watched_call: a call of a layer or of the loss, whose use of tensors of other processes is an
// error.
#ifndef GPIPE_INTERNAL_MODEL_WATCHED_CALL_H_
#define GPIPE_INTERNAL_MODEL_WATCHED_CALL_H_

#include <optional>
#include <utility>

#include "gpipe/internal/model/remote_tensors.h"

namespace gpipe::internal {

// Returns what `call` gives. Throws if it uses a tensor that a layer of another process has
// registered. `remote`: these tensors; null: nothing is watched. `results_of`: the tensors in a
// result. `user`: the name of the layer or the loss.
template <typename Call, typename ResultsOf, typename User>
auto watched_call(const RemoteTensors* remote, const Call& call, const ResultsOf& results_of,
                  const User& user, bool is_loss = false) {
  if (remote == nullptr) return call();
  const RemoteUse use(*remote);
  std::optional<decltype(call())> result;
  try {
    result.emplace(call());
  } catch (...) {
    use.check_exception(user(), is_loss);
    throw;
  }
  use.check_results(results_of(*result), user(), is_loss);
  return *std::move(result);
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_WATCHED_CALL_H_
