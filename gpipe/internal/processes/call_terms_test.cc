#include "gpipe/internal/processes/call_terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/bytes.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CallTerms terms(int64_t rows, std::vector<std::pair<std::string, std::string>> same = {}) {
  CallTerms result;
  result.same = std::move(same);
  result.rows = rows;
  return result;
}

TEST(CallTerms, ArriveAsTheyWereSent) {
  CallTerms before = terms(-1, {{"the call", "step"}, {"an empty one", ""}});
  before.seed = std::numeric_limits<uint64_t>::max();
  before.zero_grads = 7;
  before.changed_tied_parameters = "101";
  before.trained_tied_parameters = "-10";
  const auto after = from_bytes<CallTerms>(to_bytes(before));
  EXPECT_EQ(after.same, before.same);
  EXPECT_EQ(after.rows, -1);
  EXPECT_EQ(after.seed, before.seed);
  EXPECT_EQ(after.zero_grads, 7);
  EXPECT_EQ(after.changed_tied_parameters, before.changed_tied_parameters);
  EXPECT_EQ(after.trained_tied_parameters, before.trained_tied_parameters);
}

TEST(CallTerms, SayWhereZeroGradWasCalledAnotherNumberOfTimes) {
  std::vector<CallTerms> of_ranks(3);
  for (CallTerms& terms : of_ranks) terms.zero_grads = 4;
  EXPECT_EQ(zero_grads_text(of_ranks), "");
  of_ranks[2].zero_grads = 5;
  EXPECT_THAT(zero_grads_text(of_ranks),
              AllOf(HasSubstr("4 times on rank 0"), HasSubstr("5 times on rank 2")));
}

TEST(Difference, NamesBothValues) {
  const std::vector<CallTerms> same = {terms(8, {{"the mode", "training"}}),
                                       terms(-1, {{"the mode", "training"}})};
  EXPECT_EQ(difference(same), std::nullopt);
  std::vector<CallTerms> other = same;
  other.push_back(terms(-1, {{"the mode", "evaluation"}}));
  EXPECT_EQ(difference(other).value_or(""),
            "the mode must be the same on all ranks: it is training on rank 0, and evaluation on "
            "rank 2");
}

TEST(Difference, OfDifferentPrograms) {
  EXPECT_THAT(difference({terms(8, {{"a", ""}}), terms(8)}).value_or(""),
              HasSubstr("rank 0 says 1 terms"));
  EXPECT_THAT(difference({terms(8, {{"a", ""}}), terms(8, {{"b", ""}})}).value_or(""),
              HasSubstr("rank 0 says 'a', and rank 1 'b'"));
}

// A world of `count` processes without replicas.
World processes(size_t count) { return World(nullptr, 0, static_cast<int64_t>(count)); }

TEST(RowsOf, AreThoseOfTheFirstStage) {
  EXPECT_EQ(rows_of({terms(-1), terms(8), terms(-1)}, processes(3), 1, 4), 8);
  EXPECT_EQ(rows_of({terms(8), terms(8)}, processes(2), 0, 4), 8);
  EXPECT_EQ(rows_of({terms(0), terms(-1)}, processes(2), 0, 4), 0);
}

TEST(RowsOf, AddUpOverReplicas) {
  EXPECT_EQ(rows_of({terms(8), terms(-1), terms(8), terms(8)}, processes(4).grid(2, 2), 0, 4), 16);
  // Ten rows make four chunks of three rows, the last of which has one row.
  EXPECT_EQ(rows_of({terms(-1), terms(6), terms(-1), terms(4)}, processes(4).grid(2, 2), 1, 4), 10);
  EXPECT_EQ(rows_of({terms(1), terms(0), terms(0)}, processes(3).grid(3, 1), 0, 3), 1);
}

TEST(RowsOf, RefusesNoneAndOthers) {
  const auto refusal = [](const std::vector<CallTerms>& of_ranks, int64_t first,
                          int64_t replicas = 1) -> std::string {
    const World world = processes(of_ranks.size());
    try {
      (void)rows_of(of_ranks, world.grid(replicas, world.size() / replicas), first, 4);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_THAT(refusal({terms(8), terms(-1)}, 1),
              HasSubstr("rank 1, which has the first stage, was given no input"));
  EXPECT_THAT(
      refusal({terms(8), terms(-1), terms(7)}, 0),
      HasSubstr("8 rows on rank 0, which has the first stage, and 7 on rank 2: give both parts "
                "of the same mini-batch"));
  EXPECT_THAT(refusal({terms(8), terms(-1), terms(8), terms(7)}, 0, 2),
              HasSubstr("8 rows on rank 2, which has the first stage, and 7 on rank 3"));
  EXPECT_THAT(refusal({terms(8), terms(-1), terms(-1), terms(8)}, 0, 2),
              HasSubstr("rank 2, which has the first stage, was given no input"));
  EXPECT_THAT(refusal({terms(5), terms(-1), terms(5), terms(-1)}, 0, 2),
              AllOf(HasSubstr("replica 0 (rank 0) was given 5 rows"), HasSubstr("rows 0 to 6"),
                    HasSubstr("World::rows")));
}

}  // namespace
}  // namespace gpipe::internal
