#include "balance/costs/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using Json = nlohmann::ordered_json;

SavedProfile sample() {
  SavedProfile saved;
  saved.model = "unet:5,64";
  saved.profile.device = "a \"processor\"";
  saved.profile.autocast = "bfloat16";
  saved.profile.deferred_batch_norm = true;
  saved.profile.batch_rows = 4;
  saved.profile.input = 1024;
  saved.profile.layers = {{"conv", 0.1, 1.0 / 3, 8, 1, 2, 3, 512}, {"1", 1e-9, 0, 0, 0, 0, 0, 64}};
  saved.profile.layers[0].split = SplitBackward{0.2, 1.0 / 7, 999};
  saved.profile.skips = {{0, 1, (int64_t{1} << 50) - 1}};
  saved.profile.shared_inputs = std::vector<int64_t>{1, 3};
  return saved;
}

void expect_same(const SavedProfile& a, const SavedProfile& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.profile.device, b.profile.device);
  EXPECT_EQ(a.profile.autocast, b.profile.autocast);
  EXPECT_EQ(a.profile.deferred_batch_norm, b.profile.deferred_batch_norm);
  EXPECT_EQ(a.profile.batch_rows, b.profile.batch_rows);
  EXPECT_EQ(a.profile.input, b.profile.input);
  EXPECT_EQ(a.profile.shared_inputs, b.profile.shared_inputs);
  ASSERT_EQ(a.profile.layers.size(), b.profile.layers.size());
  for (size_t i = 0; i < a.profile.layers.size(); ++i) {
    const LayerProfile& x = a.profile.layers[i];
    const LayerProfile& y = b.profile.layers[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.forward, y.forward);
    EXPECT_EQ(x.backward, y.backward);
    EXPECT_EQ(x.parameters, y.parameters);
    EXPECT_EQ(x.buffers, y.buffers);
    EXPECT_EQ(x.kept, y.kept);
    EXPECT_EQ(x.workspace, y.workspace);
    EXPECT_EQ(x.output, y.output);
    ASSERT_EQ(x.split.has_value(), y.split.has_value());
    if (!x.split) continue;
    EXPECT_EQ(x.split->input, y.split->input);
    EXPECT_EQ(x.split->weight, y.split->weight);
    EXPECT_EQ(x.split->waiting, y.split->waiting);
  }
  ASSERT_EQ(a.profile.skips.size(), b.profile.skips.size());
  for (size_t i = 0; i < a.profile.skips.size(); ++i) {
    EXPECT_EQ(a.profile.skips[i].from, b.profile.skips[i].from);
    EXPECT_EQ(a.profile.skips[i].to, b.profile.skips[i].to);
    EXPECT_EQ(a.profile.skips[i].bytes, b.profile.skips[i].bytes);
  }
}

std::string path(const std::string& name) {
  const char* folder = std::getenv("TEST_TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/" + name;
}

TEST(ProfileFile, KeepsEveryBit) {
  expect_same(profile_from_json(to_json(sample()), "f"), sample());
  save_profile(path("profile.json"), sample());
  expect_same(load_profile(path("profile.json")), sample());
}

TEST(ProfileFile, UnknownFieldsAreIgnored) {
  Json json = Json::parse(to_json(sample()));
  json["threads"] = 3;
  json["layers"][0]["color"] = "red";
  expect_same(profile_from_json(json.dump(), "f"), sample());
}

// The text of a profile file with a change.
std::string changed(const std::function<void(Json&)>& change) {
  Json json = Json::parse(to_json(sample()));
  change(json);
  return json.dump();
}

TEST(ProfileFile, FilesOfVersionOneDoNotSayHowTheyWereMade) {
  const std::string old = changed([](Json& json) {
    json["version"] = 1;
    json.erase("shared_inputs");
    json.erase("autocast");
  });
  const SavedProfile read = profile_from_json(old, "f");
  EXPECT_FALSE(read.profile.shared_inputs);
  EXPECT_FALSE(read.profile.autocast);
  EXPECT_FALSE(profile_from_json(to_json(read), "f").profile.autocast)
      << "the field is still false after the profile was written and read again";
  EXPECT_FALSE(
      profile_from_json(changed([](Json& json) { json.erase("deferred_batch_norm"); }), "f")
          .profile.deferred_batch_norm);
  EXPECT_THAT(
      [&] { profile_from_json(changed([](Json& json) { json["deferred_batch_norm"] = 1; }), "f"); },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("deferred_batch_norm is 1, expected true or false")));
  EXPECT_EQ(
      profile_from_json(changed([](Json& json) { json.erase("autocast"); }), "f").profile.autocast,
      "")
      << "version 2 says it";
  EXPECT_THAT(
      [] { profile_from_json(changed([](Json& json) { json["shared_inputs"][1] = 0.5; }), "f"); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("shared_inputs is 0.5")));
}

TEST(ProfileFile, OlderFilesHaveNoHalvesOfBackwards) {
  const std::string old = changed([](Json& json) {
    for (const char* name : {"input_gradient", "weight_gradient", "waiting"}) {
      json["layers"][0].erase(name);
    }
  });
  const LayerProfile layer = profile_from_json(old, "f").profile.layers[0];
  EXPECT_FALSE(layer.split);
  const SplitBackward halves = split_backward(layer);
  EXPECT_EQ(halves.input, layer.backward / 2);
  EXPECT_EQ(halves.weight, layer.backward / 2);
  EXPECT_EQ(halves.waiting, layer.kept);
}

struct Damage {
  std::function<void(Json&)> change;
  std::string part;
};

TEST(ProfileFile, MessagesNameFileAndField) {
  const std::vector<Damage> damages = {
      {[](Json& json) { json["format"] = "other"; }, "not a profile"},
      {[](Json& json) { json.erase("format"); }, "not a profile"},
      {[](Json& json) { json = Json::array(); }, "not a profile"},
      {[](Json& json) { json["version"] = 3; }, "version 3, this program reads version 1 to 2"},
      {[](Json& json) { json.erase("version"); }, "version is missing"},
      {[](Json& json) { json["model"] = 5; }, "model is 5, expected a text"},
      {[](Json& json) { json["layers"] = "x"; }, "layers is a string, expected a list"},
      {[](Json& json) { json["layers"] = Json::array(); }, "layers is empty"},
      {[](Json& json) { json["layers"][1] = 7; }, "layers[1] is 7, expected an object"},
      {[](Json& json) { json["layers"][1].erase("kept"); }, "layers[1].kept is missing"},
      {[](Json& json) { json["layers"][1]["forward"] = "fast"; },
       "layers[1].forward is a string, expected a number"},
      {[](Json& json) { json["layers"][1]["forward"] = nullptr; }, "layers[1].forward is a null"},
      {[](Json& json) { json["layers"][1]["forward"] = -1.5; }, "layers[1].forward is -1.5"},
      {[](Json& json) { json["layers"][0]["parameters"] = 1.5; },
       "layers[0].parameters is 1.5, expected a whole number"},
      {[](Json& json) { json["layers"][0]["output"] = uint64_t{1} << 63; },
       "layers[0].output is 9223372036854775808, expected a whole number below 2^63"},
      {[](Json& json) { json["layers"][0]["output"] = -1; }, "layers[0].output is -1"},
      {[](Json& json) { json["skips"][0]["to"] = 2; }, "skips[0] leads from layer 0 to layer 2"},
      {[](Json& json) { json["skips"][0]["to"] = 0; }, "skips[0] leads from layer 0 to layer 0"},
      {[](Json& json) { json["skips"][0].erase("bytes"); }, "skips[0].bytes is missing"},
      {[](Json& json) { json["batch_rows"] = -3; }, "batch_rows is -3"},
      {[](Json& json) { json["layers"][0].erase("waiting"); }, "layers[0].waiting is missing"},
      {[](Json& json) { json["layers"][0]["weight_gradient"] = -1; },
       "layers[0].weight_gradient is -1"},
      {[](Json& json) { json["layers"][0]["waiting"] = -1; }, "layers[0].waiting is -1"},
  };
  for (const Damage& damage : damages) {
    const std::string text = changed(damage.change);
    EXPECT_THAT(
        [&text] { profile_from_json(text, "my.json"); },
        ThrowsMessage<std::invalid_argument>(AllOf(StartsWith("my.json"), HasSubstr(damage.part))));
  }
}

TEST(ProfileFile, ANumberThatNoDoubleHoldsIsRefused) {
  const auto expect_named = [](const std::string& before, const std::string& number,
                               const std::string& field) {
    std::string text = to_json(sample());
    const size_t begin = text.find(before);
    ASSERT_NE(begin, std::string::npos) << before;
    const size_t value = text.find_first_not_of(" \n", begin + before.size());
    text.replace(value, text.find_first_of(",\n", value) - value, number);
    EXPECT_THAT([&] { profile_from_json(text, "my.json"); },
                ThrowsMessage<std::invalid_argument>(StartsWith(
                    "my.json: " + field + " is " + number + ", which does not fit in a")))
        << before;
  };
  expect_named("\"version\":", "1e999", "version");
  expect_named("\"forward\":", "1e999", "layers[0].forward");
  expect_named("\"weight_gradient\":", "-2e308", "layers[0].weight_gradient");
  expect_named("\"forward\": 1e-09,\n   \"backward\":", "1e999", "layers[1].backward");
  expect_named("\"bytes\":", "1e999", "skips[0].bytes");
  expect_named("\"shared_inputs\": [\n  1,", "1e999", "shared_inputs[1]");
  EXPECT_THAT([] { profile_from_json("1e999", "my.json"); },
              ThrowsMessage<std::invalid_argument>(StartsWith("my.json: it is 1e999")));
}

TEST(ProfileFile, AnyTruncationIsRefused) {
  const std::string text = to_json(sample());
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_THROW(profile_from_json(text.substr(0, length), "f"), std::invalid_argument) << length;
  }
  EXPECT_THAT([&text] { profile_from_json(text.substr(0, 40), "f"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("near byte 40 of 40")));
}

TEST(ProfileFile, FilesThatCannotBeRead) {
  EXPECT_THAT([] { load_profile(path("none.json")); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("none.json"), HasSubstr("No such file"))));
  std::ofstream(path("empty.json")).close();
  EXPECT_THAT([] { load_profile(path("empty.json")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("empty.json")));
  EXPECT_THROW(load_profile(path(".")), std::invalid_argument)
      << "a folder is refused as a profile";
}

TEST(ProfileFile, OnlyWhatCanHaveBeenMeasuredIsSaved) {
  SavedProfile saved = sample();
  saved.profile.layers[1].backward = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT([&saved] { to_json(saved); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("layers[1].backward is nan")));
}

}  // namespace
}  // namespace gpipe::balance
