// Schedule claims: what papers say of the idle time of pipeline schedules, beside what is simulated
// here under the same condition. See README.md in this folder.

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/frame/scale.h"
#include "experiments/frame/variants.h"
#include "experiments/schedule_claims/claims.h"

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Simulates what papers claim about the idle time of pipeline schedules, each claim under its\n"
    "condition: interleaving's bubble, the zero-bubble paper's bubble rates, DualPipe's bubble,\n"
    "and the ranking that turns when transfers take time. No device is needed.\n\n"
    "  tools/bazel run //experiments/schedule_claims\n"
    "  tools/bazel run //experiments/schedule_claims -- "
    "--experiment=1.5b-zb-h1,1.5b-zb-h2\n\n"
    "Experiments: the rows of the table.";

constexpr char kSource[] = "published";
constexpr double kPoints = 100;

const char* key_of(Measure measure) { return measure == Measure::kStep ? "step" : "idle"; }

// The measure in words, as it is published.
std::string share_text(Measure measure) {
  switch (measure) {
    case Measure::kOfWork:
      return "Idle time / work";
    case Measure::kOfSpan:
      return "Idle time / span";
    case Measure::kOfFilling:
      return "Step without filling and work / work";
    case Measure::kStep:
      return "Step / 1F1B's";
  }
  throw std::logic_error("a measure without a name");
}

// The difference in percentage points, to the 0.01 that is published. Adding 0.0 turns -0 into 0.
double rounded(double difference) {
  return std::round(kPoints * kPoints * difference) / kPoints + 0.0;
}

void simulate_claim(const Claim& claim, Outcome& outcome, const RunContext& context) {
  context.check();
  const Simulated simulated = claim.simulate();
  outcome.figures[key_of(claim.measure)] = simulated.value;
  double published = 0;
  if (absl::SimpleAtod(claim.published, &published)) {
    outcome.figures["difference"] = rounded(simulated.value - published);
  }
  if (simulated.turns) outcome.figures["turns"] = *simulated.turns;
  outcome.settings = {
      {"source", claim.source}, {"condition", claim.condition}, {"scale", to_text(Scale::kFull)}};
  if (simulated.rank) outcome.settings["rank"] = *simulated.rank;
  outcome.note = absl::StrCat(share_text(claim.measure), ". Published: ", claim.source,
                              ". Condition: ", claim.condition);
  outcome.origin = Origin::kSimulated;
}

PublishedTable table() {
  PublishedTable table;
  table.title = "Claims of papers on the idle time of schedules, simulated";
  table.columns = {{"idle", "idle share", {kSource}},
                   {"step", "step / 1F1B's", {kSource}},
                   {"difference", "difference (points)", {}},
                   {"turns", "1F1B faster from c (F)", {}}};
  for (const Claim& claim : claims()) {
    PublishedRow row{claim.name, {}, ""};
    if (!claim.published.empty()) row.figures[key_of(claim.measure)][kSource] = claim.published;
    table.rows.push_back(row);
  }
  return table;
}

ExperimentRun prepare() {
  const CommonFlags flags = read_common_flags();
  if (flags.devices_given) {
    throw std::invalid_argument("--devices: nothing is run here; leave it out");
  }
  if (flags.schedule) {
    throw std::invalid_argument(
        "--schedule: the rows are the schedules; choose some of them with --experiment");
  }
  if (flags.epochs || flags.batch_size || flags.checkpoint) {
    throw std::invalid_argument(
        absl::StrCat(flags.epochs       ? "--epochs"
                     : flags.batch_size ? "--batch_size"
                                        : "--checkpoint",
                     ": schedules are simulated, and nothing is trained; leave it out"));
  }
  ExperimentRun prepared;
  prepared.name = "schedule_claims";
  prepared.table = table();
  prepared.json = flags.json;
  std::vector<VariantName> names;
  for (const Claim& claim : claims()) names.push_back({claim.name, false});
  prepared.variants = make_variants(
      flags, "all", names, {Origin::kSimulated},
      [](const CommonFlags& /*flags*/, const std::string& name, Origin /*way*/) -> RunVariant {
        return [claim = find_variant(claims(), name)](Outcome& outcome, const RunContext& context) {
          simulate_claim(claim, outcome, context);
        };
      });
  prepared.remarks = {
      "Simulated, not run: gpipe/schedule/simulate.h, with every stage as long as every other. p "
      "workers, v stages on each, m micro-batches; F, B, I and W: times of a forward, a whole "
      "backward and its halves, of all layers of a worker for one micro-batch, unless a note says "
      "otherwise; c: the time of a transfer between two workers.",
      "Idle: the time that the worker that idles longest idles between its first action and its "
      "last (its span). A step also has the filling before the first and what comes after the "
      "last.",
      "Difference: simulated minus published, in percentage points, to the 0.01 that is "
      "published. A row's note says of what its share is.",
      "Interleaving in the zero-bubble paper's table: its spans hold p transfers less than ours "
      "in every setting; it does not say how they were counted. Not here: ZB-1p and ZB-2p, which "
      "its own search finds for the longest span, where ours goes for the shortest step.",
      "The ranking: only the published words are compared, not figures. It was made for GPipe, "
      "1F1B, Chimera and Hanayo in a simulator of its authors, and says that transfers can undo "
      "what a shorter bubble gains, and that GPipe and 1F1B take the same time, under its "
      "assumptions. Chimera, which keeps all weights twice, and Hanayo are not among the "
      "schedules here. Where transfers take time, 1F1B is slower than GPipe here, as it waits for "
      "them in every micro-batch."};
  return prepared;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
