#include "gpipe/internal/tensors/version_mark.h"

#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {
namespace {

TEST(VersionMarkTest, SeesChangesByWhicheverWay) {
  at::Tensor tensor = at::ones({2, 2});
  const at::Tensor other = at::ones({2});
  tensor.add_(1);
  const VersionMark mark(tensor);
  other.add_(1);
  EXPECT_FALSE(mark.is_changed()) << "neither an earlier change nor another tensor's change counts";
  for (const auto& [way, change] :
       {std::make_pair(tensor, "itself"), std::make_pair(tensor.select(0, 1), "a view"),
        std::make_pair(detached_alias(tensor), "an alias")}) {
    VersionMark here(tensor);
    way.add_(1);
    EXPECT_TRUE(here.is_changed()) << change;
    here.renew();
    EXPECT_FALSE(here.is_changed()) << change;
  }
}

TEST(VersionMarkTest, TheTensorNeedNotLive) {
  at::Tensor tensor = at::ones({2});
  const at::Tensor alias = detached_alias(tensor);
  const c10::StorageImpl* const storage = storage_of(tensor);
  const VersionMark mark(tensor);
  EXPECT_EQ(alias.storage().use_count(), 2u);
  tensor = at::Tensor();
  EXPECT_EQ(alias.storage().use_count(), 1u) << "its memory is not kept";
  EXPECT_EQ(storage_of(alias), storage);
  EXPECT_FALSE(mark.is_changed());
  alias.add_(1);
  EXPECT_TRUE(mark.is_changed());
}

TEST(VersionMarkTest, ABumpIsAChange) {
  const at::Tensor tensor = at::ones({2});
  const int64_t before = version_of(tensor);
  VersionMark mark(tensor);
  mark.bump();
  EXPECT_TRUE(mark.is_changed());
  EXPECT_EQ(version_of(tensor), before + 1);
}

TEST(VersionMarkTest, OfInferenceModeNothingIsSeen) {
  const c10::InferenceMode inference;
  const at::Tensor tensor = at::ones({2});
  const VersionMark mark(tensor);
  tensor.add_(1);
  EXPECT_FALSE(mark.is_changed());
}

TEST(ItemTest, IsChangedSinceItWasMarked) {
  Item item;
  EXPECT_FALSE(item.is_changed()) << "there is no tensor";
  item.tensor = at::ones({2});
  item.tensor.add_(1);
  EXPECT_TRUE(item.is_changed());
  item.mark_version();
  EXPECT_FALSE(item.is_changed());
  detached_alias(item.tensor).add_(1);
  EXPECT_TRUE(item.is_changed());
}

}  // namespace
}  // namespace gpipe::internal
