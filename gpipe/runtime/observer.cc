#include "gpipe/runtime/observer.h"

namespace gpipe {

std::ostream& operator<<(std::ostream& out, const Event& event) {
  out << "run " << event.run << ", worker " << event.worker << ": " << event.action
      << (event.edge == Event::Edge::kBegin ? " begins" : " ends");
  if (event.failed) out << ", failed";
  if (event.recompute_begin != event.recompute_end) out << ", with a recompute";
  return out;
}

}  // namespace gpipe
