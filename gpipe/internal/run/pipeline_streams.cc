#include <algorithm>

#include "gpipe/internal/run/pipeline.h"

namespace gpipe::internal {

std::vector<c10::Stream> Pipeline::streams_of_caller() const {
  std::vector<c10::Stream> streams;
  for (int64_t j = 0; j < stages(); ++j) {
    const c10::DeviceType type = stages_[j].device().type();
    const bool known = std::any_of(stages_.begin(), stages_.begin() + j, [&](const Stage& before) {
      return before.device().type() == type;
    });
    if (known) continue;
    for (const c10::Stream& stream : current_streams(type)) streams.push_back(stream);
  }
  return streams;
}

void Pipeline::give_back(const Pass& pass, const BackwardRequest* request,
                         const std::vector<c10::Stream>& of_caller) {
  tied_over_devices_.end_run(pass.streams);
  for (size_t k = 0; k < of_caller.size(); ++k) {
    transfers_.let_follow(pass.streams[k]);
    follow(of_caller[k], pass.streams[k]);
  }
  // The gradients were made on the stages' streams and are read on the caller's streams, so their
  // memory must not be used again before the latter are done.
  auto use_here = [](const at::Tensor& gradient) {
    if (gradient.defined()) use_on(gradient, current_stream(gradient.device()));
  };
  for (const Packet& packet : pass.input_gradients) {
    for (const Item& item : packet.items) use_here(item.tensor);
  }
  if (request == nullptr || !request->requested) return;
  for (const at::Tensor& sum : request->requested->sums) use_here(sum);
}

}  // namespace gpipe::internal
