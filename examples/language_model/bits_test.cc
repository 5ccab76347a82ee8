#include "examples/language_model/bits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/language_model/settings.h"
#include "gpipe/pipeline_setup.h"

namespace language_model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

using Change = std::function<void(Settings&)>;

gpipe::ScheduleChoice schedule_of(const std::string& name) {
  return gpipe::choice_by_name(name, "--schedule");
}

// Gives all settings usual values, and then makes the change.
void fill(Settings& settings, const Change& change) {
  settings.text = "In the beginning";
  settings.documents_are = "lines";
  settings.length = 8;
  settings.model_name = "llama";
  settings.model.num_layers(2).hidden_size(16).num_heads(2).residual_dropout(0.1);
  settings.batch = 6;
  settings.steps = 24;
  settings.learning_rate = 0.02;
  settings.seed = 3;
  settings.schedule = schedule_of("1f1b");
  settings.chunks = 4;
  change(settings);
}

std::string bits(
    const Change& change = [](Settings&) {}, int64_t threads = 2) {
  Settings settings;
  fill(settings, change);
  return bits_of(settings, threads);
}

TEST(Bits, AreThoseOfWhateverLayout) {
  const std::vector<Change> layouts = {
      [](Settings& settings) { settings.path = "/elsewhere"; },
      [](Settings& settings) { settings.schedule = schedule_of("zb-v"); },
      [](Settings& settings) {
        settings.balance = {3, 4};
      },
      [](Settings& settings) { settings.stages = 3; },
      [](Settings& settings) { settings.checkpoint = gpipe::Checkpoint::kAlways; },
      [](Settings& settings) { settings.devices = {c10::Device("cuda:0")}; },
      [](Settings& settings) { settings.zero = true; },
      [](Settings& settings) { settings.stop_at = 7; },
      [](Settings& settings) { settings.validate_every = 5; },
  };
  for (const Change& layout : layouts) {
    EXPECT_THAT(compare_bits(bits(), bits(layout)).flags, IsEmpty()) << bits(layout);
  }
  // The number of replicas does not count either, if the number of groups is the same.
  const auto groups = [](int64_t number, int64_t replicas) {
    return bits([&](Settings& settings) {
      settings.groups = number;
      settings.replicas = replicas;
    });
  };
  EXPECT_EQ(groups(4, 1), groups(4, 2));
  EXPECT_EQ(groups(2, 1), groups(0, 2));
  // The number of threads does not count if no stage is on the CPU, which 0 stands for.
  EXPECT_THAT(compare_bits(bits([](Settings&) {}, 0), bits()).flags, IsEmpty());
  EXPECT_THAT(compare_bits(bits(), bits([](Settings&) {}, 0)).flags, IsEmpty());
}

TEST(Bits, TellWhatIsAnother) {
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](Settings& settings) { settings.text += "."; }, "the same --text"},
      {[](Settings& settings) { settings.documents_are = "paragraphs"; }, "--documents=lines"},
      {[](Settings& settings) { settings.length = 9; }, "--length=8"},
      {[](Settings& settings) { settings.packed = false; }, "--packed"},
      {[](Settings& settings) { settings.model_name = "gpt2"; }, "--model=llama"},
      {[](Settings& settings) { settings.model.num_layers(3); }, "--blocks=2"},
      {[](Settings& settings) { settings.model.hidden_size(32); }, "--width=16"},
      {[](Settings& settings) { settings.model.num_heads(4); }, "--heads=2"},
      {[](Settings& settings) { settings.model.residual_dropout(0); }, "--dropout=0.1"},
      {[](Settings& settings) { settings.model.tied(true); }, "--notied"},
      {[](Settings& settings) { settings.batch = 8; }, "--batch=6"},
      {[](Settings& settings) { settings.short_last = true; }, "--noshort_last"},
      {[](Settings& settings) { settings.steps = 25; }, "--steps=24"},
      {[](Settings& settings) { settings.learning_rate = 0.1; }, "--learning_rate=0.02"},
      {[](Settings& settings) { settings.warm_up = 1; }, "--warm_up=50"},
      {[](Settings& settings) { settings.weight_decay = 1; }, "--weight_decay=0.1"},
      {[](Settings& settings) { settings.clip = 0; }, "--clip=1.0"},
      {[](Settings& settings) { settings.seed = 4; }, "--seed=3"},
      {[](Settings& settings) { settings.bfloat16 = true; }, "--nobfloat16"},
      {[](Settings& settings) { settings.chunks = 2; }, "--chunks=4"},
      {[](Settings& settings) { settings.groups = 1; },
       "no --groups and no --replicas, of which each is a group"},
      // --groups was not given. The number of groups follows from the replicas, so the message
      // names both flags.
      {[](Settings& settings) { settings.replicas = 2; },
       "no --groups and no --replicas, of which each is a group"},
      {[](Settings& settings) { settings.schedule = schedule_of("gpipe"); },
       "a --schedule with the order of the checkpoint's"},
  };
  for (const auto& [change, flag] : changes) {
    EXPECT_EQ(flags_of_saved(compare_bits(bits(), bits(change))), flag);
  }
  EXPECT_EQ(flags_of_saved(compare_bits(bits(), bits([](Settings&) {}, 1))), "--threads=2");
  // With a single micro-batch gradients are summed in the same order under every schedule, so the
  // schedule does not count.
  const auto with_one_micro_batch = [](const std::string& schedule) {
    return bits([&](Settings& settings) {
      settings.chunks = 1;
      settings.schedule = schedule_of(schedule);
    });
  };
  EXPECT_EQ(with_one_micro_batch("gpipe"), with_one_micro_batch("1f1b"));
  const std::string other = bits([](Settings& settings) {
    settings.seed = 4;
    settings.packed = false;
  });
  const BitsDifference both = compare_bits(bits(), other);
  EXPECT_EQ(to_text(both),
            "  --packed: true in the checkpoint, false now\n"
            "  --seed: 3 in the checkpoint, 4 now");
  EXPECT_EQ(flags_of_saved(both), "--packed --seed=3");
}

TEST(Bits, OfAnotherVersionOfTheProgram) {
  std::string renamed = bits();
  const std::string name = "\"seed\"";
  renamed.replace(renamed.find(name), name.size(), "\"dice\"");
  const BitsDifference difference = compare_bits(renamed, bits());
  EXPECT_THAT(difference.flags, IsEmpty());
  EXPECT_THAT(difference.unknown, ElementsAre("seed", "dice"));
  for (const char* other : {"seed 3", "[3]", "3"}) {
    EXPECT_THAT([&] { (void)compare_bits(other, bits()); },
                ThrowsMessage<std::runtime_error>(HasSubstr("not those of this program")));
  }
}

TEST(Bits, TellWhichRankHasOtherFlags) {
  const auto flags = [](const Change& change) {
    Settings settings;
    fill(settings, change);
    return shared_flags(settings);
  };
  const std::string one = flags([](Settings&) {});
  EXPECT_EQ(difference_of_ranks({one}), "");
  EXPECT_EQ(difference_of_ranks({one, one, one}), "");
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](Settings& settings) { settings.learning_rate = 0.5; }, "--learning_rate"},
      {[](Settings& settings) { settings.seed = 5; }, "--seed"},
      {[](Settings& settings) { settings.packed = false; }, "--packed"},
      {[](Settings& settings) { settings.schedule = schedule_of("zb-h1"); }, "--schedule"},
      {[](Settings& settings) { settings.zero = true; }, "--zero"},
      {[](Settings& settings) { settings.plain = true; }, "--plain"},
      {[](Settings& settings) { settings.stop_at = 3; }, "--stop_at"},
      {[](Settings& settings) { settings.validate_every = 3; }, "--validate_every"},
      {[](Settings& settings) { settings.validation_rows = 3; }, "--validation_rows"},
      {[](Settings& settings) { settings.save_every = 3; }, "--save_every"},
      {[](Settings& settings) { settings.sampling.bytes = 3; }, "--sample"},
      {[](Settings& settings) { settings.sampling.samples = 3; }, "--samples"},
      {[](Settings& settings) { settings.sampling.cache = false; }, "--cache"},
      {[](Settings& settings) { settings.sampling.prompt = "\xff"; }, "--prompt"},
      {[](Settings& settings) { settings.sampling.temperature = 2; }, "--temperature"},
  };
  for (const auto& [change, flag] : changes) {
    EXPECT_THAT(difference_of_ranks({one, one, flags(change)}),
                StartsWith(flag + " must be the same on all ranks: rank 0 has "));
  }
  // Each flag must be named once, with the first rank that has another value than rank 0.
  const std::string both = flags([](Settings& settings) {
    settings.seed = 5;
    settings.packed = false;
  });
  EXPECT_EQ(difference_of_ranks({one, flags(changes[1].first), both}),
            "--seed must be the same on all ranks: rank 0 has 3, rank 1 has 5\n"
            "--packed must be the same on all ranks: rank 0 has true, rank 2 has false");
  // These flags may differ between machines and between processes, so they are not compared.
  const std::string other = flags([](Settings& settings) {
    settings.path = "/elsewhere";
    settings.threads = 2;
    settings.json = "/elsewhere";
  });
  EXPECT_EQ(difference_of_ranks({one, other}), "");
}

}  // namespace
}  // namespace language_model
