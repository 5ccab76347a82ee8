#include "gpipe/internal/model/remote_tensors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "interception/recorded_inputs.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

thread_local RemoteUse* current_use = nullptr;

MemoryRange bytes_of(const at::Tensor& tensor) {
  const auto size = static_cast<int64_t>(tensor.element_size());
  const MemoryRange elements = memory_range(tensor);
  return {elements.begin * size, elements.end * size};
}

}  // namespace

void RemoteTensors::add(const Layer& layer, int64_t process) {
  const auto add_one = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    if (!tensor.defined()) return;
    const size_t number = all_.size();
    if (!by_tensor_.emplace(tensor.unsafeGetTensorImpl(), number).second) return;
    Remote remote;
    remote.tensor = tensor;
    remote.is_buffer = is_buffer;
    remote.name = layer.name + "." + name;
    remote.layer = layer_text(layer);
    remote.process = process;
    if (storage_of(tensor) != nullptr && !tensor.is_meta()) {
      remote.storage = tensor.storage().getWeakStorageImpl();
      remote.bytes = bytes_of(tensor);
      by_storage_[storage_of(tensor)].push_back(number);
    }
    all_.push_back(std::move(remote));
  };
  const torch::nn::Module& module = *layer.module.ptr();
  for (const auto& item : module.named_parameters()) add_one(item.key(), item.value(), false);
  for (const auto& item : module.named_buffers()) add_one(item.key(), item.value(), true);
}

bool RemoteTensors::any_trained() const {
  return std::any_of(all_.begin(), all_.end(), [](const Remote& each) {
    return !each.is_buffer && each.tensor.requires_grad();
  });
}

const RemoteTensors::Remote* RemoteTensors::find(const at::Tensor& tensor) const {
  if (tensor.is_meta()) {
    const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
    return found == by_tensor_.end() ? nullptr : &all_[found->second];
  }
  const auto found = by_storage_.find(storage_of(tensor));
  if (found == by_storage_.end()) return nullptr;
  const MemoryRange bytes = bytes_of(tensor);
  for (const size_t number : found->second) {
    const Remote& remote = all_[number];
    // A tied parameter has values here, so it is not on meta. A tensor that is not trained keeps
    // its old values.
    if (remote.tensor.is_meta() && remote.tensor.requires_grad() &&
        bytes.begin < remote.bytes.end && remote.bytes.begin < bytes.end) {
      return &remote;
    }
  }
  return nullptr;
}

std::string RemoteTensors::text_of(const Remote& remote, const std::string& user,
                                   bool is_loss) const {
  const std::string advice =
      remote.is_buffer
          ? "Put both into one process (the balance, or Placement::processes), or give each a "
            "buffer of its own"
      : is_loss
          ? "Compute what needs it in the last layer: one that derives from gpipe::TiedLayer gets "
            "a copy of it here (docs/guide/03-sequential-model.md#tied-weights)"
          : "Let the layer that uses it derive from gpipe::TiedLayer (tied/tied_layer.h), by which "
            "it gets a copy here (docs/guide/03-sequential-model.md#tied-weights), or put both "
            "into one process (the balance, or Placement::processes)";
  return c10::str(user, ", in process ", process_, ", uses the ",
                  remote.is_buffer ? "buffer" : "parameter", " ", text::in_quotes(remote.name),
                  " of shape ", remote.tensor.sizes(), " that ", remote.layer,
                  " has registered in process ", remote.process,
                  ", and does not say so: here it has no values. ", advice);
}

// LibTorch swallows exceptions of these callbacks, so they only record what they find.
struct RemoteUse::Observer {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    RemoteUse* const use = current_use;
    if (use == nullptr || use->has_old_values_) return nullptr;
    for (const c10::IValue& value : recorded_inputs(call)) {
      for_each_tensor_in(value, [&](const at::Tensor& tensor) {
        const RemoteTensors::Remote* const found = use->tensors_.find(tensor);
        if (found == nullptr || use->has_old_values_) return;
        if (use->found_ == nullptr || !tensor.is_meta()) use->found_ = found;
        use->has_old_values_ = !tensor.is_meta();
      });
    }
    return nullptr;
  }
};

RemoteUse::RemoteUse(const RemoteTensors& tensors)
    : tensors_(tensors),
      former_(current_use),
      callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(&Observer::begin)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
  current_use = this;
}

RemoteUse::~RemoteUse() {
  at::removeCallback(callback_);
  current_use = former_;
}

void RemoteUse::check_results(const std::vector<const at::Tensor*>& results,
                              const std::string& user, bool is_loss) const {
  if (found_ == nullptr) return;
  const bool on_meta = std::any_of(
      results.begin(), results.end(),
      [](const at::Tensor* const result) { return result->defined() && result->is_meta(); });
  TORCH_CHECK_VALUE(!has_old_values_ && !on_meta, tensors_.text_of(*found_, user, is_loss));
}

void RemoteUse::check_exception(const std::string& user, bool is_loss) const {
  if (found_ == nullptr) return;
  try {
    throw;
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    TORCH_CHECK_VALUE(!absl::StrContains(what, "meta") && !absl::StrContains(what, "Meta"),
                      tensors_.text_of(*found_, user, is_loss));
  } catch (...) {  // the exception that is being handled says more
  }
}

}  // namespace gpipe::internal
