#include "skip/namespace.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/hash/hash.h"

namespace gpipe::skip {
namespace {

TEST(NamespaceTest, TwoNamespacesDiffer) {
  const Namespace a, b;
  EXPECT_NE(a, b);
  EXPECT_FALSE(a == b);
  EXPECT_NE(a.id(), b.id());
}

TEST(NamespaceTest, CopyEqualsItsOriginal) {
  const Namespace original;
  const Namespace copy = original;  // NOLINT: the copy is what is tested
  EXPECT_NE(&copy, &original);
  EXPECT_EQ(copy, original);
  EXPECT_FALSE(copy < original);
  EXPECT_EQ(std::hash<Namespace>()(copy), std::hash<Namespace>()(original));
  EXPECT_EQ(absl::Hash<Namespace>()(copy), absl::Hash<Namespace>()(original));
}

TEST(NamespaceTest, CommonIsOneAndDiffersFromEveryOther) {
  EXPECT_EQ(Namespace::common(), Namespace::common());
  EXPECT_EQ(Namespace::common().id(), 0);
  EXPECT_NE(Namespace(), Namespace::common());
}

TEST(NamespaceTest, IsAKeyOfSetsTheCommonOneIncluded) {
  const Namespace a, b;
  EXPECT_EQ((std::set<Namespace>{a, b, a, Namespace::common()}).size(), 3u);
  EXPECT_EQ((std::unordered_set<Namespace>{a, b, a, Namespace::common()}).size(), 3u);
}

TEST(NamespaceTest, OnesMadeInSeveralThreadsDiffer) {
  std::vector<std::vector<Namespace>> namespaces(4);
  std::vector<std::thread> threads;
  for (auto& mine : namespaces) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < 1000; ++i) mine.emplace_back();
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<Namespace> all;
  for (const auto& mine : namespaces) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 4000u);
}

}  // namespace
}  // namespace gpipe::skip
