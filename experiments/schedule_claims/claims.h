// claims: what papers say about the idle time of schedules, each claim with its condition, and the
// same figure from simulate().
//
// Every claim is one row of the experiment. There are p workers with v stages each, and m
// micro-batches. A transfer between workers takes c. F, B, I and W are the times of all layers of a
// worker for one micro-batch (a forward, a whole backward, its two halves).
#ifndef GPIPE_EXPERIMENTS_SCHEDULE_CLAIMS_CLAIMS_H_
#define GPIPE_EXPERIMENTS_SCHEDULE_CLAIMS_CLAIMS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::experiments {

// The figure that a claim is about.
enum class Measure : uint8_t {
  kOfWork,  // idle time / work, of the worker that idles longest between its first and last action
  kOfSpan,  // that idle time / the time from its first action to its last
  kOfFilling,  // (makespan - work - filling) / work
  kStep,       // makespan / 1F1B's
};

// The result of simulating a claim.
struct Simulated {
  double value = 0.0;
  // For kStep: `rank` is the place among the compared schedules, 1 for the shortest step. `turns`
  // is set if transfers take no time: the time of a transfer, in F, from which on 1F1B's step would
  // be shorter than this one's, if there is one.
  std::optional<int64_t> rank = std::nullopt;
  std::optional<double> turns = std::nullopt;
};

struct Claim {
  std::string name;       // the row's name: "interleaved-p8-v4-m32"
  std::string source;     // who published it, and where
  std::string condition;  // under which it is simulated
  Measure measure = Measure::kOfWork;
  std::string
      published;  // as printed, or as the formula gives it, rounded to four digits; may be ""
  std::function<Simulated()> simulate;
};

// All claims, in the table's order: interleaving, zero bubble, DualPipe, and the ranking.
std::vector<Claim> claims();

// One setting of the zero-bubble paper: its table 9 (times in ms) and table 5 (bubble rates).
struct ZeroBubbleSetting {
  std::string model;  // "1.5b"
  int64_t workers;
  int64_t micro_batches;
  int64_t interleaved_stages;  // of a worker; each is a transformer layer
  StageCost cost;              // of all layers of a worker
  double transfer;
  std::string one_f_one_b, interleaved, zb_h1, zb_h2;  // as printed
};
// All twelve settings. claims() has the four with fewest micro-batches.
std::vector<ZeroBubbleSetting> zero_bubble_settings();
// The paper's bubble rate, Measure::kOfSpan, of the four schedules in that setting, as named there:
// "1f1b", "interleaved", "zb-h1", "zb-h2".
double zero_bubble_rate(const ZeroBubbleSetting& setting, const std::string& schedule);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_SCHEDULE_CLAIMS_CLAIMS_H_
