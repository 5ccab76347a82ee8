#include "examples/language_model/documents.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace language_model {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Split, LinesAndParagraphs) {
  const std::string text = "\none\ntwo\n\n\nthree\n\nfour";
  EXPECT_THAT(split(text, Documents::kLines), ElementsAre("one\n", "two\n", "three\n", "four"));
  EXPECT_THAT(split(text, Documents::kParagraphs), ElementsAre("one\ntwo\n", "three\n", "four"));
  EXPECT_THAT(split("\n\n", Documents::kLines), IsEmpty());
}

// The pairs that a model learns from the batch, as "ids > targets" with '.' for the ends of a
// document, and how often each pair comes.
std::map<std::string, int> learned(const Batch& batch) {
  const auto text = [](const at::Tensor& token) {
    const auto number = token.item<int64_t>();
    return number == kEnd ? '.' : static_cast<char>(number);
  };
  std::map<std::string, int> result;
  for (int64_t row = 0; row < batch.ids.size(0); ++row) {
    std::map<int64_t, std::pair<std::string, std::string>> documents;
    for (int64_t k = 0; k < batch.ids.size(1); ++k) {
      if (batch.targets[row][k].item<int64_t>() == kIgnored) continue;
      auto& [ids, targets] = documents[batch.documents[row][k].item<int64_t>()];
      ids.push_back(text(batch.ids[row][k]));
      targets.push_back(text(batch.targets[row][k]));
    }
    for (const auto& [number, both] : documents) ++result[both.first + " > " + both.second];
  }
  return result;
}

const std::vector<std::string_view> kDocuments = {"abc", "de", "f", "ghijklmno", "pq", "r", "s"};
const std::map<std::string, int> kLearned = {
    {".abc > abc.", 1}, {".de > de.", 1}, {".f > f.", 1}, {".ghijk > ghijkl", 1},
    {"lmno > mno.", 1}, {".pq > pq.", 1}, {".r > r.", 1}, {".s > s.", 1}};

TEST(PackedRows, EachTokenIsLearnedOnceBehindItsOwnDocument) {
  for (const bool packed : {false, true}) {
    const PackedRows rows(cut(kDocuments, 6), 6, packed, 1);
    EXPECT_EQ(rows.validation_rows(), packed ? 5 : 8);
    const Batch all = rows.validation(0, rows.validation_rows());
    EXPECT_EQ(learned(all), kLearned);
    EXPECT_EQ(all.tokens, 26);
    EXPECT_EQ(all.targets.ne(kIgnored).sum().item<int64_t>(), 26);
    // Padding has another document number than the document before it.
    const at::Tensor change = all.documents.slice(1, 1) != all.documents.slice(1, 0, -1);
    const at::Tensor begins =
        all.targets.slice(1, 1).eq(kIgnored).logical_and(all.targets.slice(1, 0, -1).ne(kIgnored));
    EXPECT_TRUE(change.logical_or(begins.logical_not()).all().item<bool>());
  }
}

TEST(PackedRows, AnEpochHasEachPieceOnceInItsOwnOrder) {
  PackedRows rows(cut(kDocuments, 6), 6, /*packed=*/false, 1);
  const Batch first = rows.training(0, 8), second = rows.training(8, 8);
  EXPECT_EQ(learned(first), kLearned);
  EXPECT_EQ(learned(second), kLearned);
  EXPECT_FALSE(first.ids.equal(second.ids));
  PackedRows other(cut(kDocuments, 6), 6, /*packed=*/false, 2);
  EXPECT_FALSE(first.ids.equal(other.training(0, 8).ids));
}

TEST(PackedRows, AnEpochTellsWhatIsLeftOfIt) {
  PackedRows rows(cut(kDocuments, 6), 6, /*packed=*/false, 1);
  EXPECT_EQ(rows.left_in_epoch(0), 8);
  EXPECT_EQ(rows.left_in_epoch(7), 1);
  EXPECT_EQ(rows.left_in_epoch(8), 8);
  EXPECT_EQ(rows.left_in_epoch(30), 2);
  EXPECT_EQ(rows.left_in_epoch(3), 5);
}

TEST(PackedRows, RowsFollowFromTheirNumberAlone) {
  PackedRows straight(cut(kDocuments, 6), 6, /*packed=*/true, 1);
  std::vector<Batch> batches;
  for (int64_t k = 0; k < 9; ++k) batches.push_back(straight.training(3 * k, 3));
  PackedRows jumps(cut(kDocuments, 6), 6, /*packed=*/true, 1);
  for (const int64_t k : {7, 2, 8, 0, 5}) {
    const Batch batch = jumps.training(3 * k, 3);
    EXPECT_TRUE(batch.ids.equal(batches[static_cast<size_t>(k)].ids)) << k;
    EXPECT_TRUE(batch.documents.equal(batches[static_cast<size_t>(k)].documents)) << k;
    EXPECT_TRUE(batch.targets.equal(batches[static_cast<size_t>(k)].targets)) << k;
  }
}

TEST(PackedRows, LittleIsPadding) {
  // Documents of 20 to 119 bytes fill more than 95 % of rows of 256 tokens.
  std::vector<std::string> texts;
  for (size_t k = 0; k < 500; ++k) texts.emplace_back(20 + k * 37 % 100, 'x');
  PackedRows rows(cut({texts.begin(), texts.end()}, 256), 256, /*packed=*/true, 1);
  EXPECT_GT(rows.training(0, 100).tokens, 256 * 100 * 0.95);
}

TEST(PackedRows, MistakesAreRefused) {
  EXPECT_THROW(PackedRows({}, 6, true, 0), c10::ValueError);
  EXPECT_THROW(PackedRows(cut(kDocuments, 6), 5, true, 0), c10::ValueError);
  const PackedRows rows(cut(kDocuments, 6), 6, true, 0);
  EXPECT_THROW(rows.validation(0, rows.validation_rows() + 1), c10::IndexError);
}

}  // namespace
}  // namespace language_model
