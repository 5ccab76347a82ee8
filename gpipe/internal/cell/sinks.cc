#include "gpipe/internal/cell/sinks.h"

#include <utility>

#include "gpipe/internal/backward/engine_node.h"

namespace gpipe::internal {

void Sinks::add(size_t packet, const at::Tensor& tensor, bool wanted) {
  if (places_.size() <= packet) places_.resize(packet + 1);
  int place = -1;
  if (wanted) {
    if (!sink_) sink_ = make_node<GradientSink>();
    place = static_cast<int>(sink_->attach(tensor));
  }
  places_[packet].push_back(place);
}

std::vector<Packet> Sinks::take() {
  std::vector<Packet> packets(places_.size());
  for (size_t k = 0; k < places_.size(); ++k) {
    for (int place : places_[k]) {
      Item item;
      if (place >= 0 && !sink_->gradients().empty()) {
        item.tensor = std::move(sink_->gradients()[place]);
      }
      packets[k].items.push_back(std::move(item));
    }
  }
  return packets;
}

}  // namespace gpipe::internal
