#include "experiments/interruptions/lost_time.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

namespace gpipe::experiments {
namespace {

// A number in (0, 1]. The distributions of the standard library differ from one to the next.
double draw(std::mt19937_64& bits) { return static_cast<double>((bits() >> 11) + 1) * 0x1p-53; }

class Run {
 public:
  Run(const Cluster& cluster, const Recovery& recovery,
      const std::vector<Interruption>& interruptions)
      : cluster_(cluster), recovery_(recovery), interruptions_(interruptions) {}

  LostTime play() {
    while (now_ < cluster_.seconds) {
      if (!train() && now_ < cluster_.seconds) recover();
    }
    lost_.training = static_cast<double>(step_) * recovery_.step;
    lost_.repeated = worked_ - lost_.training;
    return lost_;
  }

 private:
  // Lets `seconds` pass and adds them to `part`. Returns false if a failure or the end of the time
  // comes before. Then only the time until that has passed.
  bool pass(double seconds, double& part) {
    const double failure =
        next_ < interruptions_.size() ? interruptions_[next_].at : cluster_.seconds;
    const double until = std::min(failure, cluster_.seconds);
    const bool is_whole = now_ + seconds <= until;
    const double passed = is_whole ? seconds : std::max(until - now_, 0.0);
    part += passed;
    now_ = is_whole ? now_ + seconds : std::max(until, now_);
    return is_whole;
  }

  // Trains until the next copy is made. Returns false if that is interrupted.
  bool train() {
    const int64_t saved = next_multiple(recovery_.save_every);
    const int64_t next =
        takes_snapshots() ? std::min(saved, next_multiple(recovery_.snapshot_every)) : saved;
    const double begin = now_;
    if (!pass(static_cast<double>(next - step_) * recovery_.step, worked_)) {
      // At the end of the time the finished steps count. After a failure step_ is set back.
      step_ += static_cast<int64_t>((now_ - begin) / recovery_.step);
      return false;
    }
    step_ = next;
    if (step_ % recovery_.save_every == 0) {
      if (!pass(recovery_.save, lost_.saving)) return false;
      saved_ = step_;
    }
    if (!takes_snapshots() || step_ % recovery_.snapshot_every != 0) return true;
    if (!pass(recovery_.snapshot, lost_.copying)) return false;
    copied_ = step_;
    return true;
  }

  // Passes the time from a failure to the restored state.
  void recover() {
    std::vector<int64_t> dead;
    bool from_disk = !takes_snapshots();
    while (next_ < interruptions_.size() && now_ < cluster_.seconds) {
      const Interruption& failure = interruptions_[next_++];
      ++lost_.interruptions;
      from_disk = from_disk || failure.takes_partner || loses_state(failure.worker, dead);
      dead.push_back(failure.worker);
      step_ = from_disk ? saved_ : copied_;
      if (!pass(from_disk ? recovery_.restart : recovery_.recovery, lost_.recovering)) continue;
      // The new workers hold nothing before this copy is complete.
      if (takes_snapshots() && !pass(recovery_.snapshot, lost_.copying)) continue;
      copied_ = step_;
      break;
    }
    if (from_disk) ++lost_.from_disk;
  }

  // Whether a state is lost if `worker` fails, too.
  bool loses_state(int64_t worker, const std::vector<int64_t>& dead) const {
    const auto next = [&](int64_t other) { return (other + 1) % cluster_.workers; };
    return next(worker) == worker || std::any_of(dead.begin(), dead.end(), [&](int64_t other) {
             return next(worker) == other || next(other) == worker;
           });
  }

  bool takes_snapshots() const { return recovery_.snapshot_every > 0; }
  int64_t next_multiple(int64_t of) const { return (step_ / of + 1) * of; }

  const Cluster& cluster_;
  const Recovery& recovery_;
  const std::vector<Interruption>& interruptions_;
  std::size_t next_ = 0;  // of interruptions_
  double now_ = 0;
  double worked_ = 0;  // seconds in steps, those that count and others
  int64_t step_ = 0;   // how many steps count
  int64_t copied_ = 0;
  int64_t saved_ = 0;
  LostTime lost_;
};

}  // namespace

std::vector<Interruption> draw_interruptions(const Cluster& cluster, uint64_t seed) {
  std::mt19937_64 bits(seed);
  const double mean = cluster.seconds_between_failures / static_cast<double>(cluster.workers);
  std::vector<Interruption> found;
  for (double at = 0;;) {
    at -= mean * std::log(draw(bits));
    if (at >= cluster.seconds) return found;
    const auto worker = static_cast<int64_t>(bits() % static_cast<uint64_t>(cluster.workers));
    found.push_back({at, worker, draw(bits) <= cluster.takes_partner});
  }
}

LostTime play(const Cluster& cluster, const Recovery& recovery,
              const std::vector<Interruption>& interruptions) {
  return Run(cluster, recovery, interruptions).play();
}

double youngs_interval(double copy, double between_failures) {
  return std::sqrt(2 * copy * between_failures);
}

}  // namespace gpipe::experiments
