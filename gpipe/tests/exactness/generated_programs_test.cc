// Random programs, with all kinds of layers that users write, in the pipeline and in the plain
// model, compared bit by bit (see gpipe/testing/programs). A failing program is made small and
// printed.
//
//   GPIPE_TEST_SEED          the first program's seed; the next ones follow
//   GPIPE_PROGRAMS           how many
//   GPIPE_PROGRAMS_FAILURES  after how many failures to stop
//   GPIPE_PROGRAMS_WITHOUT   words, separated by |; layers and features with one are left out
//   GPIPE_PROGRAMS_VERBOSE   prints what was refused and invalid, too

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/internal/backward/local_backward.h"
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

TEST(GeneratedPrograms, EqualThePlainModelBitByBit) {
  at::set_num_threads(1);
  internal::check_held_gradients(true);
  const uint64_t seed = number_from("GPIPE_TEST_SEED", 20261121);
  const uint64_t programs = number_from("GPIPE_PROGRAMS", 1000);
  const uint64_t most_failures = number_from("GPIPE_PROGRAMS_FAILURES", 3);
  const bool verbose = std::getenv("GPIPE_PROGRAMS_VERBOSE") != nullptr;
  const std::vector<std::string> without = words_from("GPIPE_PROGRAMS_WITHOUT");
  std::map<Outcome::Kind, uint64_t> counts;
  uint64_t failures = 0;
  uint64_t drawn = 0;
  for (; drawn < programs && failures < most_failures; ++drawn) {
    Program program = testing::programs::random_program(seed + drawn, without);
    const Outcome outcome = testing::programs::run(program);
    ++counts[outcome.kind];
    if (verbose && (outcome.kind == Outcome::kInvalid || outcome.kind == Outcome::kRefused)) {
      std::cout << (outcome.kind == Outcome::kInvalid ? "invalid: " : "refused: ") << outcome.what
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
  // More would mean that the generator tests less than it seems to.
  if (programs >= 100) {
    EXPECT_LE(counts[Outcome::kInvalid], drawn / 10);
    EXPECT_LE(counts[Outcome::kRefused], drawn / 10);
  }
}

}  // namespace
}  // namespace gpipe
