// LibTorch versions: which operators give other bits in another version of LibTorch, or with
// another number of threads. See README.md in this folder.

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "balance/commands/training_flags.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/run.h"
#include "experiments/libtorch_versions/calls.h"
#include "experiments/libtorch_versions/recorder.h"
#include "experiments/libtorch_versions/replay.h"
#include "experiments/libtorch_versions/steps.h"
#include "experiments/libtorch_versions/table.h"

ABSL_FLAG(std::string, record, "", "Record the steps' calls of operators into this file.");
ABSL_FLAG(std::string, replay, "",
          "Replay the calls of this file; --results names the file for the results.");
ABSL_FLAG(
    std::string, compare, "",
    "Compare the results in two files, A,B, or those in one file, with its numbers of threads.");
ABSL_FLAG(int64_t, most_calls, 6,
          "With --record: how many calls to keep at most for each operator, type and source.");
ABSL_FLAG(std::string, hashes, "",
          "Write to this file a hash of the plain model after each random program.");
ABSL_FLAG(int64_t, programs, 1000, "With --record and --hashes: the number of random programs.");
ABSL_FLAG(std::string, threads, "1,2,4", "With --replay: numbers of threads, one after another.");
ABSL_FLAG(std::string, results, "", "With --replay: the file for the results.");
ABSL_FLAG(bool, all, false, "With --compare: print the rows without a difference, too.");
ABSL_FLAG(std::string, json, "", "With --compare: write the whole table to this file.");

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Which operators give other bits in another version of LibTorch, or with another number of\n"
    "threads? Their calls are those of training steps of //models and of random programs. Record\n"
    "the calls once, replay them with each version, and compare:\n\n"
    "  tools/bazel run //experiments/libtorch_versions -- --record=calls.pt\n"
    "  tools/bazel run //experiments/libtorch_versions -- --replay=calls.pt --results=here.pt\n"
    "  GPIPE_LIBTORCH=2.11.0 tools/bazel run --config=cxx17 //experiments/libtorch_versions -- \\\n"
    "      --replay=calls.pt --results=there.pt\n"
    "  tools/bazel run //experiments/libtorch_versions -- --compare=there.pt,here.pt "
    "--json=table.json\n\n"
    "Or run random programs whole, and compare the files of two versions with diff:\n\n"
    "  tools/bazel run //experiments/libtorch_versions -- --hashes=here.txt --programs=2000";

constexpr int64_t kMostThreads = 1024;
constexpr int64_t kProgramsOfASource = 200;  // for --most_calls, this many programs are one source

int record(const std::string& path) {
  Recorder recorder(absl::GetFlag(FLAGS_most_calls));
  at::set_num_threads(1);
  std::vector<Step> steps = zoo_steps();
  const int64_t programs = absl::GetFlag(FLAGS_programs);
  for (int64_t done = 0; done < programs; done += kProgramsOfASource) {
    steps.push_back(generated_steps(done + 1, std::min(kProgramsOfASource, programs - done)));
  }
  for (const c10::ScalarType type : {c10::kFloat, c10::kDouble, c10::kBFloat16}) {
    for (const Step& step : steps) {
      const Recorder::Scope scope(recorder, step.name);
      step.run(type);
      std::cerr << step.name << ", " << type << ": " << recorder.recording().calls.size()
                << " calls so far\n";
    }
  }
  if (!recorder.left_out().empty()) {
    std::cout << "Left out, because their tensors have no plain memory: "
              << absl::StrJoin(recorder.left_out(), ", ") << "\n";
  }
  save(recorder.recording(), path);
  std::cout << "Recorded " << recorder.recording().calls.size() << " calls with LibTorch "
            << version_here() << "\n";
  return 0;
}

int hash_programs(const std::string& path) {
  at::set_num_threads(1);
  std::string lines;
  const int64_t programs = absl::GetFlag(FLAGS_programs);
  for (int64_t seed = 1; seed <= programs; ++seed) {
    absl::StrAppend(&lines, seed, " ", generated_hash(static_cast<uint64_t>(seed)), "\n");
  }
  command::write_result(path, lines);
  return 0;
}

int replay_file(const std::string& path, const std::vector<int64_t>& threads,
                const std::string& results) {
  std::string checksum;
  const Recording recording = load_recording(path, checksum);
  Replays replays;
  replays.version = version_here();
  replays.capability = capability_here();
  replays.recording = absl::StrCat(recording.version, "-", checksum);
  for (const Call& call : recording.calls) {
    replays.operators.push_back(call.op);
    replays.types.push_back(call.type);
  }
  for (const int64_t count : threads) {
    std::cerr << "replaying " << recording.calls.size() << " calls, threads: " << count << "\n";
    replays.runs.push_back(replay(recording, count));
  }
  save(replays, results);
  return 0;
}

int compare_files(const std::vector<std::string>& paths, const std::string& json) {
  const Replays first = load_replays(paths[0]);
  const ComparedTable table =
      paths.size() == 1 ? compare_threads(first) : compare(first, load_replays(paths[1]));
  std::cout << table.to_markdown(absl::GetFlag(FLAGS_all));
  if (!json.empty()) command::write_result(json, table.to_json().dump(1) + "\n");
  return 0;
}

command::Work prepare() {
  const std::string recorded = absl::GetFlag(FLAGS_record);
  const std::string replayed = absl::GetFlag(FLAGS_replay);
  const std::string compared = absl::GetFlag(FLAGS_compare);
  command::FileFlags files;
  const std::string hashes = files.output("hashes", absl::GetFlag(FLAGS_hashes));
  if (!recorded.empty() + !replayed.empty() + !compared.empty() + !hashes.empty() != 1) {
    throw std::invalid_argument(
        "give one of --record=FILE, --replay=FILE, --compare=FILE,FILE and --hashes=FILE; --help "
        "shows all four");
  }
  if (!hashes.empty()) {
    command::in_range("programs", absl::GetFlag(FLAGS_programs), 1);
    return [hashes] { return hash_programs(hashes); };
  }
  if (!recorded.empty()) {
    command::in_range("most_calls", absl::GetFlag(FLAGS_most_calls), 1);
    command::in_range("programs", absl::GetFlag(FLAGS_programs), 0);
    return [path = files.output("record", recorded)] { return record(path); };
  }
  if (!replayed.empty()) {
    const std::vector<int64_t> threads =
        balance::parse_counts("threads", absl::GetFlag(FLAGS_threads), kMostThreads);
    const std::string input = files.input("replay", replayed);
    const std::string results = files.output("results", absl::GetFlag(FLAGS_results));
    if (results.empty()) {
      throw std::invalid_argument("--replay: say with --results=FILE where the results go");
    }
    return [path = input, threads, results] { return replay_file(path, threads, results); };
  }
  std::vector<std::string> paths = absl::StrSplit(compared, ',');
  if (paths.size() > 2) {
    throw std::invalid_argument(
        absl::StrCat("--compare: ", paths.size(), " files were given; give one or two"));
  }
  for (std::string& path : paths) path = files.input("compare", path);
  return [paths, json = files.output("json", absl::GetFlag(FLAGS_json))] {
    return compare_files(paths, json);
  };
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::command::run_command(argc, argv, gpipe::experiments::kUsage,
                                     gpipe::experiments::prepare);
}
