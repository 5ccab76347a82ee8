// Runs random programs, with all kinds of layers that users write, in the pipeline and in the plain
// model, and compares them bit by bit (see gpipe/testing/programs). A failing program is made small
// and printed.
//
// The test runs on the CPU, on the fake accelerator and on GPUs. The programs of a seed are the
// same on the CPU and on GPUs, where more of them are invalid: LibTorch does not have a
// deterministic kernel for every operator. Programs that the fake accelerator cannot run are left
// out (kLacksOnFake).
//
//   GPIPE_TEST_SEED          the first program's seed; the next ones follow
//   GPIPE_PROGRAMS           how many
//   GPIPE_PROGRAMS_FAILURES  after how many failures to stop
//   GPIPE_PROGRAMS_WITHOUT   words, separated by |; layers and features with one are left out
//   GPIPE_PROGRAMS_VERBOSE   prints what was refused and invalid, too
//   GPIPE_PROGRAMS_GRAPHS    if it is 1, the pipeline has GPipeOptions::graphs, and makes 6 calls

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/internal/backward/held_gradients.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/number_from.h"
#include "gpipe/testing/programs/compare.h"
#include "gpipe/testing/programs/program.h"
#include "gpipe/testing/programs/reduce.h"

namespace gpipe {
namespace {

using testing::number_from;
using testing::programs::Outcome;
using testing::programs::Program;

std::vector<std::string> words_from(const char* name) {
  std::vector<std::string> words;
  const char* text = std::getenv(name);
  std::istringstream stream(text == nullptr ? "" : text);
  for (std::string word; std::getline(stream, word, '|');) words.push_back(word);
  return words;
}

// The fake accelerator cannot run these features (gpipe/testing/fake_accelerator/README.md):
const char* const kLacksOnFake[] = {
    "Lstm", "LastState", "Gru",  // LibTorch has them for other devices than the CPU as one operator
                                 // that the CPU does not have
    "autocast",                  // autocast has no list of operators for such a device
};

// A GPU computes these features differently each time, or returns their results in one tensor:
const char* const kLacksOnCuda[] = {
    "num_layers(2)",   // dropout in cuDNN, which has a random state of its own
    "halve in place",  // a fused cell gives both of its biases one tensor as their gradients, so
                       // what a hook writes there depends on which comes first (docs/guide, chapter
                       // 17)
};

enum class Kind { kCpu, kFake, kCuda };

Kind kind_of_device() {
  return !testing::for_gpus()          ? Kind::kCpu
         : testing::device().is_cuda() ? Kind::kCuda
                                       : Kind::kFake;
}

std::vector<std::string> left_out(Kind kind) {
  std::vector<std::string> words = words_from("GPIPE_PROGRAMS_WITHOUT");
  if (kind == Kind::kFake)
    words.insert(words.end(), std::begin(kLacksOnFake), std::end(kLacksOnFake));
  if (kind == Kind::kCuda)
    words.insert(words.end(), std::begin(kLacksOnCuda), std::end(kLacksOnCuda));
  return words;
}

// Makes LibTorch sum in a fixed order in every operator that has such a kernel. An operator that
// LibTorch knows to have no such kernel throws in the plain model. The function must be called
// before anything is computed on a GPU. For cuDNN and TF32 every test does so already
// (gpipe/testing/same_bits.cc).
void compute_the_same_each_time() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setBenchmarkCuDNN(false);
}

uint64_t default_programs(Kind kind) {
  return kind == Kind::kCpu ? 1000 : kind == Kind::kFake ? 600 : 300;
}

// So many calls are enough for graphs to be recorded and replayed.
constexpr int64_t kCallsWithGraphs = 6;

// The beginning of a message, without the parts that differ from program to program. The test
// counts messages by their beginnings.
std::string beginning_of(const std::string& message) {
  return message.substr(0, std::min<size_t>(message.find('\n'), 110));
}

class GeneratedPrograms : public testing::DeviceTest {};

TEST_F(GeneratedPrograms, EqualThePlainModelBitByBit) {
  const Kind kind = kind_of_device();
  at::set_num_threads(1);
  if (kind == Kind::kCuda) compute_the_same_each_time();
  // The check of held gradients waits for devices. There it would hide that another wait is
  // missing, so it is made on the CPU only.
  internal::check_held_gradients(kind == Kind::kCpu);
  const uint64_t seed = number_from("GPIPE_TEST_SEED", 20261121);
  const uint64_t programs = number_from("GPIPE_PROGRAMS", default_programs(kind));
  const uint64_t most_failures = number_from("GPIPE_PROGRAMS_FAILURES", 3);
  const bool graphs = number_from("GPIPE_PROGRAMS_GRAPHS", 0) != 0;
  const bool verbose = std::getenv("GPIPE_PROGRAMS_VERBOSE") != nullptr;
  const std::vector<std::string> without = left_out(kind);
  std::map<Outcome::Kind, uint64_t> counts;
  std::map<std::string, uint64_t> reasons;
  uint64_t replaying = 0;
  uint64_t failures = 0;
  uint64_t drawn = 0;
  for (; drawn < programs && failures < most_failures; ++drawn) {
    Program program = testing::programs::random_program(seed + drawn, without);
    program.graphs = graphs;
    if (graphs) program.calls = kCallsWithGraphs;
    const Outcome outcome = testing::programs::run(program);
    ++counts[outcome.kind];
    if (outcome.replayed > 0) ++replaying;
    if (!outcome.what.empty()) ++reasons[beginning_of(outcome.what)];
    if (verbose && (outcome.kind == Outcome::kInvalid || outcome.kind == Outcome::kRefused)) {
      std::cout << (outcome.kind == Outcome::kInvalid ? "invalid: " : "refused: ") << outcome.what
                << "\n"
                << testing::programs::to_text(program);
    }
    if (outcome.what.find("CUDA error") != std::string::npos) {
      FAIL() << "after " << drawn << " programs the GPU can compute no more: " << outcome.what
             << "\n"
             << testing::programs::to_text(program);
    }
    if (!outcome.failed()) continue;
    ++failures;
    const auto reduced = testing::programs::reduce(program, outcome);
    ADD_FAILURE() << outcome.what << "\nreduced: " << reduced.outcome.what << "\n"
                  << testing::programs::to_text(reduced.program);
  }
  std::cout << drawn << " programs from seed " << seed << ": " << counts[Outcome::kEqual]
            << " equal, " << counts[Outcome::kEqualButSums] << " equal up to the order of sums, "
            << counts[Outcome::kRefused] << " refused, " << counts[Outcome::kInvalid]
            << " invalid (the plain model throws), " << counts[Outcome::kDifferent]
            << " different, " << counts[Outcome::kThrows] << " threw\n";
  if (kind != Kind::kCpu) {
    std::cout << counts[Outcome::kEqualButCopies] << " equal up to copies between devices, "
              << counts[Outcome::kUnrepeatable] << " with a plain model that differs from itself\n";
    for (const auto& [reason, count] : reasons)
      std::cout << "  " << count << "x " << reason << "\n";
  }
  if (graphs) std::cout << replaying << " replayed graphs\n";
  // Larger counts would mean that the generator tests less than it seems to.
  if (programs >= 100) {
    EXPECT_LE(counts[Outcome::kInvalid], kind == Kind::kCuda ? drawn / 3 : drawn / 10);
    // On devices fewer programs are run, so chance has more influence, and the bound is wider.
    EXPECT_LE(counts[Outcome::kRefused], kind == Kind::kCpu ? drawn / 10 : drawn / 7);
    EXPECT_LE(counts[Outcome::kEqualButCopies], drawn / 50);
    EXPECT_LE(counts[Outcome::kUnrepeatable], drawn / 20);
    if (graphs && kind != Kind::kCpu) {
      EXPECT_GE(replaying, drawn / 4);
    }
  }
}

}  // namespace
}  // namespace gpipe
