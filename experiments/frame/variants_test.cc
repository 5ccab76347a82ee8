#include "experiments/frame/variants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

const std::vector<VariantName> kKnown = {{"plain", false}, {"pipeline-2", true}, {"deep", true}};

// A balance of two fits only pipeline-2; there are enough devices for all except "deep".
RunVariant make(const CommonFlags& flags, const std::string& name, Origin way) {
  EXPECT_NE(way, Origin::kPublished);
  if (name == "plain") {
    EXPECT_FALSE(flags.for_pipelines());
  } else if (!flags.balance.empty() && (flags.balance.size() != 2 || name == "deep")) {
    throw std::invalid_argument("--balance does not fit " + name);
  }
  return [](Outcome&, const RunContext&) {};
}

std::vector<Variant> variants_for(const CommonFlags& flags, const std::string& defaults = "all") {
  return make_variants(flags, defaults, kKnown, {Origin::kMeasured}, make);
}

std::vector<std::string> names(const std::vector<Variant>& variants) {
  std::vector<std::string> names;
  for (const Variant& variant : variants) names.push_back(variant.name);
  return names;
}

TEST(Variants, AreFoundByTheirNames) {
  struct Own {
    std::string name;
    std::vector<int64_t> balance;
  };
  const std::vector<Own> variants = {{"plain", {}}, {"pipeline", {1, 1}}};
  EXPECT_EQ(&find_variant(variants, "pipeline"), &variants[1]);
  EXPECT_THAT([&] { find_variant(variants, "none"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("there is no variant none")));
  const std::vector<VariantName> names = names_of(variants);
  ASSERT_EQ(names.size(), 2);
  EXPECT_EQ(names[0].name, "plain");
  EXPECT_FALSE(names[0].pipeline);
  EXPECT_TRUE(names[1].pipeline);
}

TEST(MakeVariants, NamedOrDefault) {
  CommonFlags flags;
  EXPECT_THAT(names(variants_for(flags)), ElementsAre("plain", "pipeline-2", "deep"));
  const std::vector<Variant> variants = variants_for(flags, "plain,deep");
  EXPECT_THAT(names(variants), ElementsAre("plain", "pipeline-2", "deep"));
  EXPECT_EQ(variants[0].refusal, "");
  EXPECT_THAT(variants[1].refusal, HasSubstr("--experiment=pipeline-2 runs it"));
  flags.experiment = "deep,plain,deep";
  EXPECT_THAT(names(variants_for(flags)), ElementsAre("plain", "deep"));
  flags.experiment = "depp";
  EXPECT_THAT([&] { variants_for(flags); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean deep?")));
}

TEST(MakeVariants, FlagsOfAWayThatIsNotAskedForAreRefused) {
  const auto variants_of_ways = [](const std::string& ways, const std::string& measured,
                                   const std::string& simulated) {
    CommonFlags flags;
    flags.ways = ways;
    flags.for_measured = measured;
    flags.for_simulated = simulated;
    return make_variants(flags, "all", kKnown, {Origin::kMeasured, Origin::kSimulated}, make);
  };
  EXPECT_EQ(variants_of_ways("", "--samples", "--profile").size(), 6u);
  EXPECT_EQ(variants_of_ways("measured", "--samples", "").size(), 3u);
  EXPECT_EQ(variants_of_ways("simulated", "", "--profile").size(), 3u);
  EXPECT_THAT([&] { variants_of_ways("simulated", "--samples", ""); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("--samples is for measured rows")));
  EXPECT_THAT([&] { variants_of_ways("measured", "", "--profile"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("--profile is for simulated rows")));
}

TEST(MakeVariants, ATraceIsOfMeasuredPipelines) {
  std::vector<std::string> traces;
  const auto traces_of = [&](const CommonFlags& flags) {
    traces.clear();
    make_variants(flags, "all", kKnown, {Origin::kMeasured, Origin::kSimulated},
                  [&](const CommonFlags& own, const std::string& name, Origin way) {
                    traces.push_back(name + " " + to_text(way) + " " + own.trace);
                    return make(own, name, way);
                  });
    return traces;
  };
  CommonFlags flags;
  flags.trace = "/t.json";
  EXPECT_THAT(
      traces_of(flags),
      ElementsAre("plain measured ", "plain simulated ", "pipeline-2 measured /t.pipeline-2.json",
                  "pipeline-2 simulated ", "deep measured /t.deep.json", "deep simulated "));
  flags.experiment = "plain,deep";
  flags.ways = "measured";
  EXPECT_THAT(traces_of(flags), ElementsAre("plain measured ", "deep measured /t.json"));
  flags.experiment = "plain";
  EXPECT_THAT(
      [&] { traces_of(flags); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("--trace=/t.json is for measured pipelines")));
  flags.experiment = "deep";
  flags.ways = "simulated";
  EXPECT_THAT([&] { traces_of(flags); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("none is run")));
}

// The names and ways of the variants that run.
std::vector<std::string> labels(const std::vector<Variant>& variants) {
  std::vector<std::string> labels;
  for (const Variant& variant : variants) {
    if (variant.refusal.empty()) labels.push_back(variant.name + " " + to_text(variant.way));
  }
  return labels;
}

TEST(MakeVariants, EachOnceForEveryWay) {
  const auto labels = [](const CommonFlags& flags) {
    return gpipe::experiments::labels(
        make_variants(flags, "plain,deep", kKnown, {Origin::kMeasured, Origin::kSimulated}, make));
  };
  CommonFlags flags;
  EXPECT_THAT(labels(flags),
              ElementsAre("plain measured", "plain simulated", "deep measured", "deep simulated"));
  flags.ways = "simulated";
  EXPECT_THAT(labels(flags), ElementsAre("plain simulated", "deep simulated"));
  flags.ways = "planned";
  EXPECT_THAT([&] { labels(flags); }, ThrowsMessage<std::invalid_argument>(AllOf(
                                          HasSubstr("--ways"), HasSubstr("measured, simulated"))));
}

TEST(MakeVariants, TellsWhichWaysThereAre) {
  const std::vector<Variant> variants = variants_for({});
  EXPECT_TRUE(has_way(variants, Origin::kMeasured));
  EXPECT_FALSE(has_way(variants, Origin::kPlanned));
  EXPECT_FALSE(has_way({}, Origin::kMeasured));
}

TEST(MakeVariants, RowsAtFullSizeAreAsPublished) {
  const auto labels_for = [](const CommonFlags& flags) {
    return labels(
        make_variants(flags, "deep", kKnown, {Origin::kMeasured, Origin::kSimulated}, make));
  };
  CommonFlags flags;
  flags.ways = "simulated,simulated";
  EXPECT_EQ(labels_for(flags).size(), 1u);
  flags.checkpoint = Checkpoint::kNever;
  EXPECT_THAT([&] { labels_for(flags); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("--checkpoint is for measured rows"), HasSubstr("(simulated)"))));
  flags.ways = "";
  EXPECT_EQ(labels_for(flags).size(), 2u);
}

TEST(MakeVariants, DefaultOnesThatDoNotFitSaySo) {
  CommonFlags flags;
  flags.balance = {1, 2};
  const std::vector<Variant> variants = variants_for(flags);
  ASSERT_EQ(variants.size(), 3u);
  EXPECT_THAT(variants[0].refusal, IsEmpty());
  EXPECT_THAT(variants[1].refusal, IsEmpty());
  EXPECT_EQ(variants[2].refusal, "--balance does not fit deep");
}

TEST(MakeVariants, ANamedOneMustFit) {
  CommonFlags flags;
  flags.balance = {1, 2};
  flags.experiment = "deep";
  EXPECT_THAT([&] { variants_for(flags); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("does not fit deep")));
  flags.experiment = "plain";
  EXPECT_THAT([&] { variants_for(flags); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("--balance=[1, 2] is for pipelines, not for plain")));
}

TEST(MakeVariants, AFlagThatFitsNoneIsAnErrorThoughOthersCouldRun) {
  CommonFlags flags;
  flags.balance = {1, 2, 3};
  EXPECT_THAT([&] { variants_for(flags); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("pipeline-2: --balance does not fit pipeline-2"),
                        HasSubstr("deep: --balance does not fit deep"))));
  flags.balance = {};
  flags.chunks = 4;
  EXPECT_THAT([&] { variants_for(flags, "plain"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("none is run")));
}

}  // namespace
}  // namespace gpipe::experiments
