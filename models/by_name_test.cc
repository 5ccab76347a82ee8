#include "models/by_name.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "meta/meta_scope.h"
#include "tools/testing/wrong_input.h"

namespace gpipe::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// How many layers a network has. It is made on the meta device, so that the published sizes cost
// nothing.
std::size_t layers(const std::string& name) {
  MetaScope scope;
  return model_by_name(name).make()->size();
}

TEST(ModelByName, MakesTheNetworksOfThePublishedTables) {
  EXPECT_EQ(layers("unet:24,128"), 526u + 551u);
  EXPECT_EQ(layers("amoebanetd:36,544"), 16u + 12u + 7u + 7u);
  EXPECT_EQ(layers("resnet:101"), 370u);
  EXPECT_EQ(layers("resnet:3,4,23,3"), 370u);
  EXPECT_EQ(layers("resnet:50"), 183u);
  EXPECT_EQ(layers("resnet:152"), 557u);
  EXPECT_EQ(layers("old_amoebanetd:12,544"), 805u);
  EXPECT_EQ(layers("old_resnet:101"), 304u);
  EXPECT_EQ(layers("old_resnet:3,4,23,3"), 304u);
}

TEST(ModelByName, NumbersAreInThePublishedOrder) {
  // Returns the shape of the first convolution's weight.
  const auto first = [](const std::string& name) {
    MetaScope scope;
    return model_by_name(name).make()->parameters().front().sizes().vec();
  };
  EXPECT_THAT(first("unet:5,64"), ElementsAre(64, 3, 3, 3));
  EXPECT_THAT(first("amoebanetd:18,256"), ElementsAre(64, 3, 3, 3));
  EXPECT_THAT(first("old_amoebanetd:6,208"), ElementsAre(52, 3, 3, 3));
}

TEST(ModelByName, SaysWhatItIsTrainedOn) {
  const NamedModel unet = model_by_name(" unet:5, 64 ");
  EXPECT_EQ(unet.name, "unet:5,64");
  EXPECT_THAT(unet.row, ElementsAre(3, 192, 192));
  EXPECT_THAT(random_input(unet, 2, c10::kCPU).sizes().vec(), ElementsAre(2, 3, 192, 192));
  EXPECT_THAT(random_target(unet, 2, c10::kCPU).sizes().vec(), ElementsAre(2, 1, 192, 192));
  const NamedModel resnet = model_by_name("resnet:50", 64);
  EXPECT_THAT(resnet.row, ElementsAre(3, 64, 64));
  EXPECT_THAT(random_target(resnet, 5, c10::kCPU).sizes().vec(), ElementsAre(5));
  EXPECT_THAT(model_by_name("amoebanetd:3,8").row, ElementsAre(3, 224, 224));
  EXPECT_EQ(resnet.classes, 1000);
  // The older networks give scores for 10 classes.
  for (const std::string name : {"old_amoebanetd:1,8", "old_resnet:1,1"}) {
    const NamedModel old = model_by_name(name);
    EXPECT_THAT(old.row, ElementsAre(3, 224, 224)) << name;
    EXPECT_LT(random_target(old, 100, c10::kCPU).max().item<int64_t>(), 10) << name;
    MetaScope scope;
    EXPECT_EQ(old.make()->parameters().back().numel(), 10) << name;
  }
}

TEST(ModelByName, MakesLanguageModels) {
  EXPECT_EQ(layers("gpt2:small"), 27u);
  EXPECT_EQ(layers("gpt2:XL"), 99u);
  EXPECT_EQ(layers("llama:70b"), 163u);
  const NamedModel named = model_by_name(" gpt2:2, 12,3,16 ");
  EXPECT_EQ(named.name, "gpt2:2,12,3,16");
  EXPECT_THAT(named.row, ElementsAre(16));
  EXPECT_TRUE(named.takes_tokens);
  EXPECT_EQ(named.classes, 50257);
  const at::Tensor input = random_input(named, 2, c10::kCPU);
  EXPECT_EQ(input.scalar_type(), at::kLong);
  EXPECT_THAT(input.sizes().vec(), ElementsAre(2, 16));
  EXPECT_THAT(random_target(named, 2, c10::kCPU).sizes().vec(), ElementsAre(2, 16));
  EXPECT_EQ(random_input(model_by_name("llama:7B"), 1, c10::kMeta).size(1), 4096);
  // A tied model has one matrix less, that of the head.
  for (const std::string each : {"gpt2:2,12,3,16,7", "llama:2,12,3,1,16,7"}) {
    const auto own = model_by_name(each).make(), tied = model_by_name(each, 0, true).make();
    EXPECT_EQ(tied->size(), own->size());
    EXPECT_EQ(tied->parameters().size() + 1, own->parameters().size()) << each;
    EXPECT_EQ(own->parameters().back().sizes(), at::IntArrayRef({7, 12}));
  }
  EXPECT_EQ(model_by_name("gpt2:0,4,1,2").make()->parameters().back().sizes(),
            (at::IntArrayRef{50257, 4}));
  // The last number of these names is the size of the vocabulary.
  for (const std::string name : {"gpt2:0,4,1,2,7", "llama:0,4,1,1,2,7"}) {
    const NamedModel small = model_by_name(name);
    EXPECT_EQ(small.name, name);
    EXPECT_EQ(small.classes, 7);
    EXPECT_EQ(small.make()->parameters().back().sizes(), (at::IntArrayRef{7, 4})) << name;
    EXPECT_LT(random_input(small, 100, c10::kCPU).max().item<int64_t>(), 7) << name;
  }
  // The width of the MLP follows from the hidden size as in Llama: 11008 for 4096, 13824 for 5120.
  MetaScope scope;
  for (const auto& [name, same] : std::vector<std::pair<std::string, std::string>>{
           {"llama:32,4096,32,32,4096", "llama:7b"}, {"llama:40,5120,40,40,4096", "llama:13b"}}) {
    const auto have = model_by_name(name).make()->parameters();
    const auto want = model_by_name(same).make()->parameters();
    ASSERT_EQ(have.size(), want.size());
    for (std::size_t i = 0; i < have.size(); ++i) EXPECT_EQ(have[i].sizes(), want[i].sizes());
  }
}

std::string folder_of(const std::string& config) {
  static int count = 0;
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / ("hf" + std::to_string(count++));
  std::filesystem::create_directories(path);
  std::ofstream(path / "config.json") << config;
  return path.string();
}

TEST(ModelByName, MakesTheModelOfAHuggingFaceFolder) {
  const std::string folder = folder_of(
      R"({"model_type": "qwen2", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 20,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 12, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})");
  const NamedModel named = model_by_name("hf:" + folder);
  EXPECT_EQ(named.name, "hf:" + folder);
  EXPECT_THAT(named.row, ElementsAre(12));
  EXPECT_EQ(named.classes, 29);
  EXPECT_TRUE(named.takes_tokens);
  EXPECT_EQ(named.make_worst, nullptr);
  torch::nn::Sequential model = named.make();
  EXPECT_EQ(model->size(), 7u);
  EXPECT_EQ(model->parameters().front().scalar_type(), at::kBFloat16);
  EXPECT_EQ(model->forward(random_input(named, 2, c10::kCPU)).sizes(),
            (at::IntArrayRef{2, 12, 29}));
  EXPECT_THAT(model_by_name("hf:" + folder + ",5").row, ElementsAre(5));

  const std::string experts = folder_of(
      R"({"model_type": "mixtral", "hidden_size": 16, "intermediate_size": 20,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2})");
  MetaScope scope;
  EXPECT_EQ(model_by_name("hf:" + experts).make_worst()->size(), 5u);
  EXPECT_EQ(model_by_name("hf:" + experts).make()->parameters().front().scalar_type(), at::kFloat);
}

TEST(ModelByName, AFolderThatIsNotFromHuggingFaceIsRefused) {
  const std::string gpt2 = folder_of(R"({"model_type": "gpt2"})"),
                    other = folder_of(R"({"model_type": "mamba"})");
  for (const auto& [name, part] : std::vector<std::pair<std::string, std::string>>{
           {"hf:", "give the path of a Hugging Face folder"},
           {"hf:a b", "without spaces"},
           {"hf:/none/there", "cannot read /none/there/config.json"},
           {"hf:" + other, "got 'mamba'"},
           {"hf:" + gpt2 + ",0", "sequences of 0 tokens; give at least 1"},
           {"hf:" + gpt2 + ",2000",
            "has 1024 positions, got sequences of 2000 tokens; give at most 1024"}}) {
    try {
      model_by_name(name);
      ADD_FAILURE() << "nothing was thrown: " << name;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  EXPECT_THROW(model_by_name("hf:" + gpt2, 64), c10::ValueError);
  EXPECT_THROW(model_by_name("hf:" + gpt2, 0, /*tied=*/true), c10::ValueError);
}

TEST(ModelByName, LossesFitOutputsAndTargets) {
  for (const auto& [name, side] : std::vector<std::pair<std::string, int64_t>>{
           {"unet:1,2", 64}, {"resnet:1,1", 32}, {"llama:1,8,2,1,6", 0}}) {
    const NamedModel named = model_by_name(name, side);
    const at::Tensor output = named.make()->forward(random_input(named, 2, c10::kCPU));
    const at::Tensor loss = loss_of(named.loss, output, random_target(named, 2, c10::kCPU));
    EXPECT_EQ(loss.dim(), 0) << name;
    EXPECT_GT(loss.item<double>(), 0) << name;
  }
}

struct Mistake {
  std::string name;
  std::string part;
};

TEST(ModelByName, MistakesListTheForms) {
  for (const Mistake& mistake : std::vector<Mistake>{
           {"unett:5,64", "did you mean unet?"},
           {"U-Net:5,64", "did you mean unet?"},
           {"resnet50", "did you mean resnet:50?"},
           {"amoebanet:18,256", "did you mean amoebanetd?"},
           {"vgg:16", "there is no model 'vgg:16'"},
           {"", "there is no model ''"},
           {"unet", "has no numbers"},
           {"unet:5", "has 1 number, expected two"},
           {"unet:5,64,3", "has 3 numbers, expected two"},
           {"unet:", "'' is not a whole number"},
           {"unet:5,x", "'x' is not a whole number"},
           {"amoebanetd:18", "normal cells and filters"},
           {"old_amoebanetd:6", "normal cells of a group and filters"},
           {"oldresnet:101", "did you mean old_resnet?"},
           {"old_resnet:34", "resnet:152"},
           {"resnet:34", "resnet:152"},
           {"resnet:", "is not a whole number"},
           {"gpt2:tiny", "'tiny' is not a whole number"},
           {"gpt2:smal", "'smal' is not a whole number; did you mean small?"},
           {"gpt2:Medum", "did you mean medium?"},
           {"llama:13", "has 1 number, expected llama:7b"},
           {"llama:13bn", "did you mean 13b?"},
           {"gpt2:12,768,12", "has 3 numbers, expected gpt2:small"},
           {"gpt2:1,8,2,16,32,64", "has 6 numbers, expected gpt2:small"},
           {"llama:1,8,2,1,6,32,64", "has 7 numbers, expected llama:7b"},
           {"llama:7", "has 1 number, expected llama:7b"},
           {"gpt-2:small", "did you mean gpt2?"},
           {"lama:7b", "did you mean llama?"},
       }) {
    try {
      model_by_name(mistake.name);
      ADD_FAILURE() << mistake.name;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(testing::message_of(error), HasSubstr(mistake.part)) << mistake.name;
    }
  }
  EXPECT_THROW(model_by_name("resnet:50", -1), c10::ValueError);
  EXPECT_THROW(model_by_name("gpt2:small", 64), c10::ValueError);
  EXPECT_THROW(model_by_name("unet:5,64", 0, /*tied=*/true), c10::ValueError);
}

TEST(ModelByName, NumbersThatMakeNoNetworkAreRefusedWithTheName) {
  for (const std::string name :
       {"unet:5,1", "unet:0,64", "amoebanetd:4,256", "resnet:3,0", "old_amoebanetd:6,4",
        "old_resnet:3,0", "gpt2:1,7,2,8", "gpt2:1,8,2,8,0", "llama:1,9223372036854775807,1,1,8"}) {
    const NamedModel model = model_by_name(name);
    try {
      model.make();
      ADD_FAILURE() << name;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(testing::message_of(error), HasSubstr("model '" + name + "': "));
    }
  }
}

}  // namespace
}  // namespace gpipe::models
