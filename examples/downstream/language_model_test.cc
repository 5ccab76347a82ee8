#include "language_model.h"

#include <gtest/gtest.h>

namespace {

// A text that repeats one verse, so that it is learned soon.
std::string text() {
  std::string text;
  while (text.size() < 4000) {
    text +=
        "In the beginning God created the heaven and the earth. And the earth was without form, ";
  }
  return text;
}

TEST(LanguageModel, LearnsATextAndWritesIt) {
  LanguageModel model(text(), {5, 6});
  const std::vector<double> losses = model.train(/*steps=*/120);
  EXPECT_GT(losses.front(), 4);
  EXPECT_LT(losses.back(), 0.2);
  const std::vector<std::string> texts =
      model.write({"In the beginning God created ", "d the earth. And the earth wa"}, 12);
  EXPECT_EQ(texts[0], "In the beginning God created the heaven a");
  EXPECT_EQ(texts[1], "d the earth. And the earth was without fo");
}

TEST(LanguageModel, BalanceDoesNotChangeTheLosses) {
  EXPECT_EQ(LanguageModel(text(), {5, 6}).train(3), LanguageModel(text(), {3, 4, 4}).train(3));
}

}  // namespace
