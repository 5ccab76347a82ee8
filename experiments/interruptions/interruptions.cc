// Interruptions: how much of a cluster's time trains while workers fail, if a run goes on from the
// memory of those that are left, and if it starts again from disk. See README.md in this folder.

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/frame/scale.h"
#include "experiments/frame/variants.h"
#include "experiments/interruptions/lost_time.h"

namespace gpipe::experiments {
namespace {

constexpr double kHour = 3600, kMinute = 60;
// Llama 3 (arXiv 2407.21783), section 3.3.4: 419 unexpected interruptions in 54 days on 16,000
// GPUs.
constexpr double kPublishedHours = 16000.0 * 54 * 24 / 419;
// Measured here on four processes of docs/guide/40-if-a-machine-dies.md, under load: the median
// from a death to the next finished step, and 1.3 of its steps of 66 ms.
constexpr double kMeasuredRecovery = 3.8, kMeasuredSnapshot = 0.086;

}  // namespace
}  // namespace gpipe::experiments

ABSL_FLAG(int64_t, workers, 1024, "Workers of the cluster.");
ABSL_FLAG(double, hours, 10000, "Hours that are simulated.");
ABSL_FLAG(
    double, worker_hours, gpipe::experiments::kPublishedHours,
    "Hours from a failure of a worker to its next one, on average. Default: 16,000 x 54 x 24 / "
    "419, as published for Llama 3.");
ABSL_FLAG(
    double, takes_partner, 0,
    "The share of failures that take the worker with the copy of the state, too, from 0 to 1.");
ABSL_FLAG(double, step_seconds, 6, "Seconds of a step.");
ABSL_FLAG(int64_t, snapshot_steps, 10, "Steps from one copy in memory to the next.");
ABSL_FLAG(
    double, snapshot_seconds, gpipe::experiments::kMeasuredSnapshot,
    "Seconds that training stands still for a copy in memory. Default: measured here, of a tiny "
    "state on 4 processes.");
ABSL_FLAG(double, recovery_seconds, gpipe::experiments::kMeasuredRecovery,
          "Seconds from a failure to the state restored from memory. Default: measured here, on 4 "
          "processes.");
ABSL_FLAG(double, save_minutes, 30, "Minutes of training from one checkpoint on disk to the next.");
ABSL_FLAG(double, save_seconds, 0, "Seconds that training stands still for a checkpoint on disk.");
ABSL_FLAG(double, restart_minutes, 10,
          "Minutes from a failure to the state restored from disk. Default: assumed.");

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Simulates a cluster whose workers fail as often as published for Llama 3: the share of time\n"
    "that trains if a run goes on from copies in the memory of partners (gpipe::ResilientRun), "
    "and\n"
    "if it starts again from the last checkpoint on disk. Both meet the same failures.\n\n"
    "  tools/bazel run //experiments/interruptions\n"
    "  tools/bazel run //experiments/interruptions -- --workers=16000 --restart_minutes=5\n\n"
    "Experiments: memory, disk.";

constexpr double kMostEvents = 1e8;  // some seconds

struct Settings {
  Cluster cluster;
  Recovery memory, disk;
};

Settings read_settings() {
  using command::at_least;
  using command::in_range;
  Settings settings;
  settings.cluster.workers = in_range("workers", absl::GetFlag(FLAGS_workers), 1, 100'000'000);
  const double hours = at_least("hours", absl::GetFlag(FLAGS_hours), 1e-3);
  settings.cluster.seconds = hours * kHour;
  settings.cluster.seconds_between_failures =
      kHour * at_least("worker_hours", absl::GetFlag(FLAGS_worker_hours), 1e-3);
  settings.cluster.takes_partner =
      at_least("takes_partner", absl::GetFlag(FLAGS_takes_partner), 0, 1);

  Recovery& disk = settings.disk;
  disk.step = at_least("step_seconds", absl::GetFlag(FLAGS_step_seconds), 1e-6);
  const double save_minutes = absl::GetFlag(FLAGS_save_minutes);
  const double save_steps = at_least("save_minutes", save_minutes, 1e-6) * kMinute / disk.step;
  if (save_steps < 1) {
    throw command::wrong_value("save_minutes", save_minutes,
                               absl::StrCat("a step takes ", disk.step,
                                            " s, and a checkpoint is made between two; give at "
                                            "least ",
                                            disk.step / kMinute));
  }
  disk.save_every = std::llround(save_steps);
  disk.save = at_least("save_seconds", absl::GetFlag(FLAGS_save_seconds), 0);
  disk.restart = kMinute * at_least("restart_minutes", absl::GetFlag(FLAGS_restart_minutes), 0);

  settings.memory = disk;
  settings.memory.snapshot_every =
      in_range("snapshot_steps", absl::GetFlag(FLAGS_snapshot_steps), 1);
  settings.memory.snapshot = at_least("snapshot_seconds", absl::GetFlag(FLAGS_snapshot_seconds), 0);
  settings.memory.recovery = at_least("recovery_seconds", absl::GetFlag(FLAGS_recovery_seconds), 0);

  const double between =
      settings.cluster.seconds_between_failures / static_cast<double>(settings.cluster.workers);
  const double copies = settings.cluster.seconds / disk.step *
                        (1 / static_cast<double>(settings.memory.snapshot_every) +
                         1 / static_cast<double>(disk.save_every));
  if (settings.cluster.seconds / between + copies > kMostEvents) {
    throw command::wrong_value(
        "hours", hours,
        absl::StrFormat(
            "in that time there are %.3g failures and %.3g copies, and at most %.3g of "
            "both are simulated; give fewer hours or workers, or copies that are farther apart",
            settings.cluster.seconds / between, copies, kMostEvents));
  }
  return settings;
}

void simulate(const Settings& settings, const std::vector<Interruption>& interruptions,
              bool in_memory, uint64_t seed, Outcome& outcome) {
  const Cluster& cluster = settings.cluster;
  const Recovery& recovery = in_memory ? settings.memory : settings.disk;
  const LostTime lost = play(cluster, recovery, interruptions);
  outcome.figures = {{"useful", 100 * lost.training / cluster.seconds},
                     {"lost", (cluster.seconds - lost.training) / kHour},
                     {"repeated", lost.repeated / kHour},
                     {"recovering", lost.recovering / kHour},
                     {"saving", lost.saving / kHour},
                     {"interruptions", static_cast<double>(lost.interruptions)},
                     {"from_disk", static_cast<double>(lost.from_disk)}};
  if (in_memory) outcome.figures["copying"] = lost.copying / kHour;
  outcome.settings = {{"scale", to_text(Scale::kFull)},
                      {"seed", seed},
                      {"workers", cluster.workers},
                      {"hours", cluster.seconds / kHour},
                      {"worker_hours", cluster.seconds_between_failures / kHour},
                      {"takes_partner", cluster.takes_partner},
                      {"step_seconds", recovery.step},
                      {"save_steps", recovery.save_every},
                      {"save_seconds", recovery.save},
                      {"restart_seconds", recovery.restart}};
  outcome.note =
      absl::StrFormat("a checkpoint every %d steps of %g s (%g s each), %g s to go on",
                      recovery.save_every, recovery.step, recovery.save, recovery.restart);
  if (in_memory) {
    outcome.settings["snapshot_steps"] = recovery.snapshot_every;
    outcome.settings["snapshot_seconds"] = recovery.snapshot;
    outcome.settings["recovery_seconds"] = recovery.recovery;
    const double between = cluster.seconds_between_failures / static_cast<double>(cluster.workers);
    outcome.note = absl::StrFormat(
        "a copy every %d steps of %g s (%g s each), %g s to go on; by Young's formula a copy every "
        "%.3g steps loses least. Behind it, %s",
        recovery.snapshot_every, recovery.step, recovery.snapshot, recovery.recovery,
        youngs_interval(recovery.snapshot, between) / recovery.step, outcome.note);
  }
  outcome.origin = Origin::kSimulated;
}

PublishedTable table(const Cluster& cluster) {
  PublishedTable table;
  table.title = absl::StrFormat(
      "Interruptions, simulated: %d workers for %g hours, each failing every %.0f hours",
      cluster.workers, cluster.seconds / kHour, cluster.seconds_between_failures / kHour);
  table.columns = {
      {"useful", "useful (% of time)", {}},         {"lost", "lost (hours)", {}},
      {"repeated", "repeated (hours)", {}},         {"recovering", "recovering (hours)", {}},
      {"copying", "copying to memory (hours)", {}}, {"saving", "saving to disk (hours)", {}},
      {"interruptions", "interruptions", {}},       {"from_disk", "recovered from disk", {}}};
  table.rows = {{"memory", {}, ""}, {"disk", {}, ""}};
  return table;
}

ExperimentRun prepare() {
  const CommonFlags flags = read_common_flags();
  const std::string trains =
      first_given({"devices", "epochs", "batch_size", "checkpoint", "schedule"});
  if (!trains.empty()) {
    throw std::invalid_argument(trains +
                                ": a cluster is simulated, and nothing is trained; leave "
                                "it out");
  }
  const Settings settings = read_settings();
  ExperimentRun prepared;
  prepared.name = "interruptions";
  prepared.table = table(settings.cluster);
  prepared.json = flags.json;
  prepared.variants = make_variants(
      flags, "all", {{"memory", false}, {"disk", false}}, {Origin::kSimulated},
      [settings](const CommonFlags& flags, const std::string& name, Origin /*way*/) -> RunVariant {
        return
            [settings, name, seed = flags.seed](Outcome& outcome, const RunContext& /*context*/) {
              simulate(settings, draw_interruptions(settings.cluster, seed), name == "memory", seed,
                       outcome);
            };
      });
  prepared.remarks = {
      "Simulated, not run. Failures come as published for Llama 3 unless --worker_hours is given, "
      "independently of each other, and any of them stops the whole run.",
      "Measured here, on 4 processes with a tiny state: --recovery_seconds and --snapshot_seconds, "
      "unless they are given. Nothing was measured with more processes. Assumed: "
      "--restart_minutes, --step_seconds, and that a checkpoint on disk costs --save_seconds.",
      "Repeated: work since the last copy, which a failure has lost. A failure during a recovery "
      "begins it anew. If both holders of a state fail before the next copy is complete, the run "
      "goes on from disk."};
  return prepared;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
