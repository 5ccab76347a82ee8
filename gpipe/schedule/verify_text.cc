#include <ostream>

#include "gpipe/schedule/verify.h"

namespace gpipe {
namespace {

void write_line(std::ostream& out, const char* what, const std::vector<int64_t>& values) {
  out << what << ":";
  for (const int64_t value : values) out << " " << value;
  out << "\n";
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Sends sends) {
  switch (sends) {
    case Sends::kBuffered:
      return out << "buffered";
    case Sends::kRendezvous:
      return out << "rendezvous";
    case Sends::kPostedAhead:
      return out << "posted ahead";
  }
  return out << "Sends(" << static_cast<int>(sends) << ")";
}

std::ostream& operator<<(std::ostream& out, const ReceivesAhead& ahead) {
  return out << ahead.from_worker << " -> " << ahead.to_worker << ": " << ahead.actions;
}

std::ostream& operator<<(std::ostream& out, const ScheduleFacts& facts) {
  write_line(out, "peak live per stage", facts.peak_live);
  write_line(out, "alive per stage", facts.alive);
  write_line(out, "idle per stage", facts.idle);
  write_line(out, "peak live per worker", facts.worker_peak_live);
  write_line(out, "alive per worker", facts.worker_alive);
  write_line(out, "idle per worker", facts.worker_idle);
  out << "makespan: " << facts.makespan << "\nbubble: " << 100.0 * facts.bubble_ratio
      << " %\nascending: " << (facts.ascending ? "yes" : "no") << "\n";
  for (const ReceivesAhead& each : facts.receives_ahead) out << "receives ahead " << each << "\n";
  return out;
}

}  // namespace gpipe
