#include "text/closest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpipe::text {
namespace {

const std::vector<std::string> kKnown = {"baseline", "pipeline-1", "pipeline-2"};

TEST(Closest, FindsTypingMistakes) {
  EXPECT_EQ(closest("pipline-2", kKnown), "pipeline-2");
  EXPECT_EQ(closest("pipeline2", kKnown), "pipeline-2");
  EXPECT_EQ(closest("PIPELINE_2", kKnown), "pipeline-2");
  EXPECT_EQ(closest("batch-size", {"balance", "batch_size"}), "batch_size");
  EXPECT_EQ(closest("baselin", kKnown), "baseline");
  EXPECT_EQ(closest("1fb1", {"gpipe", "1f1b"}), "1f1b") << "neighbors that changed places";
  EXPECT_EQ(closest("b1f1", {"gpipe", "1f1b"}), "") << "no neighbors";
  EXPECT_EQ(closest("pipeline", kKnown), "pipeline-1") << "the first of several";
  EXPECT_EQ(closest("unet", kKnown), "");
  EXPECT_EQ(closest("device", {"stages_per_device", "devices"}), "devices") << "before a word";
  EXPECT_EQ(closest("", {"x", "-"}), "") << "nothing was typed";
  EXPECT_EQ(closest("x", {}), "");
}

TEST(Closest, FindsAWordOfAName) {
  EXPECT_EQ(closest("size", {"balance", "batch_size"}), "batch_size");
  EXPECT_EQ(closest("batch", {"size_of_batches", "batch_size"}), "batch_size") << "whole words";
  EXPECT_EQ(closest("bfs", {"dfs", "looped-bfs"}), "looped-bfs") << "before typing mistakes";
  EXPECT_EQ(closest("Bfs", {"looped-bfs", "b-fs"}), "b-fs") << "after the whole name";
}

TEST(Closest, LooksAtTheBeginningOfALongText) {
  EXPECT_EQ(closest(std::string(1 << 22, 'a'), {std::string(80, 'a')}), std::string(80, 'a'));
}

}  // namespace
}  // namespace gpipe::text
