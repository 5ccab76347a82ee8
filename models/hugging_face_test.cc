// Compares with what Python's transformers 5.24.0 saved and computed, with attention "eager":
// testdata/transformers/make_golden.py.
#include "models/hugging_face.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "meta/meta_scope.h"
#include "models/transformer.h"
#include "safetensors/safetensors.h"

namespace gpipe::models {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

const std::string kCases[] = {"gpt2", "gpt2_untied", "llama", "llama_tied"};

std::string golden_folder(const std::string& name) {
  return "models/testdata/transformers/" + name;
}

// Makes a new folder. It is not deleted, because LibTorch 2.11 brings a std::filesystem::remove_all
// that crashes on folders with files.
fs::path scratch() {
  static int count = 0;
  const fs::path path = fs::path(::testing::TempDir()) / ("folder" + std::to_string(count++));
  fs::create_directories(path);
  return path;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

torch::nn::Sequential loaded(const std::string& folder) {
  const TransformerOptions options = read_config(folder);
  torch::nn::Sequential model = transformer(options);
  load_hugging_face(folder, options, *model);
  return model;
}

// A model's gradients under the names that their parameters have in a file.
std::map<std::string, at::Tensor> gradients(const TransformerOptions& options,
                                            const torch::nn::Sequential& model) {
  torch::nn::Sequential copy = transformer(options);
  copy->to(model->parameters().front().scalar_type());
  {
    const torch::NoGradGuard no_grad;
    const auto values = model->named_parameters();
    for (const auto& parameter : copy->named_parameters()) {
      parameter.value().copy_(values[parameter.key()].grad());
    }
  }
  const fs::path folder = scratch();
  save_hugging_face(folder, options, *copy);
  std::map<std::string, at::Tensor> result;
  const safetensors::File file(folder / "model.safetensors");
  for (const auto& [name, entry] : file.header().tensors) result[name] = file.read(name);
  return result;
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a - b).abs().max().item<double>();
}

class Golden : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cases, Golden, ::testing::ValuesIn(kCases));

TEST_P(Golden, OutputsAndGradientsAreThoseOfTransformers) {
  const std::string folder = golden_folder(GetParam());
  const safetensors::File golden(folder + "/golden.safetensors");
  const TransformerOptions options = read_config(folder);
  // Logits and gradients are of order one. In float32 a sum of eight products, a softmax and a norm
  // round by some 1e-7 each, over four layers and back.
  for (const auto& [type, prefix, tolerance] :
       std::vector<std::tuple<at::ScalarType, std::string, double>>{
           {at::kDouble, "float64.", 1e-12}, {at::kFloat, "float32.", 5e-6}}) {
    SCOPED_TRACE(prefix);
    torch::nn::Sequential model = loaded(folder);
    model->to(type);
    model->eval();
    const at::Tensor logits = model->forward(golden.read("ids"));
    EXPECT_LE(apart(logits, golden.read(prefix + "logits")), tolerance);
    const at::Tensor loss =
        at::cross_entropy_loss(logits.flatten(0, 1), golden.read("targets").flatten());
    EXPECT_LE(apart(loss, golden.read(prefix + "loss")), tolerance);
    loss.backward();
    const auto have = gradients(options, model);
    size_t compared = 0;
    double largest = 0;
    for (const auto& [name, entry] : golden.header().tensors) {
      const std::string start = prefix + "grad.";
      if (name.rfind(start, 0) != 0) continue;
      const at::Tensor want = golden.read(name);
      ASSERT_EQ(have.count(name.substr(start.size())), 1u) << name;
      EXPECT_LE(apart(have.at(name.substr(start.size())), want), tolerance) << name;
      largest = std::max(largest, want.abs().max().item<double>());
      ++compared;
    }
    EXPECT_EQ(compared, have.size());
    EXPECT_GT(largest, 0.01);
    EXPECT_GT(golden.read(prefix + "logits").std().item<double>(), 0.1);
  }
}

TEST_P(Golden, WritesTheFilesThatTransformersWrote) {
  const std::string folder = golden_folder(GetParam());
  const fs::path written = scratch();
  // make_golden.py asked transformers for files of at most four kilobytes for some of the models.
  const bool sharded = fs::exists(folder + "/model.safetensors.index.json");
  save_hugging_face(written, read_config(folder), *loaded(folder),
                    sharded ? 4000 : int64_t{5'000'000'000});
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name == "golden.safetensors") continue;
    ++files;
    if (entry.path().extension() == ".safetensors") {
      EXPECT_EQ(contents(written / name), contents(entry.path())) << name;
      continue;
    }
    const auto want = nlohmann::json::parse(contents(entry.path()));
    const auto have = nlohmann::json::parse(contents(written / name));
    if (name == "model.safetensors.index.json") {
      EXPECT_EQ(have["weight_map"], want["weight_map"]);
      EXPECT_EQ(have["metadata"]["total_size"], want["metadata"]["total_size"]);
      continue;
    }
    for (const auto& [key, value] : have.items()) {
      if (want.contains(key) && !want[key].is_null()) {
        EXPECT_EQ(value, want[key]) << key;
      }
    }
    EXPECT_GE(have.size(), 16u);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(written), fs::directory_iterator()),
            static_cast<ptrdiff_t>(files));
}

TEST_P(Golden, LoadsIntoAPipelineAndSavesFromIt) {
  const std::string folder = golden_folder(GetParam());
  const TransformerOptions options = read_config(folder);
  GPipe pipe(transformer(options), GPipeOptions({3, 2, 2}).devices({3, c10::Device(c10::kCPU)}));
  load_hugging_face(folder, options, *pipe);
  const auto expected = loaded(folder)->named_parameters();
  ASSERT_EQ(pipe->parameters().size(), expected.size());
  for (const auto& parameter : pipe->named_parameters()) {
    EXPECT_THAT(parameter.value(), EqualsBitwise(expected[parameter.key()])) << parameter.key();
  }
  const fs::path written = scratch();
  save_hugging_face(written, options, *pipe);
  EXPECT_THAT(loaded(written)->parameters(), EqualsBitwise(pipe->parameters()));
}

// --- types and names

TEST(HuggingFace, ValuesAreConvertedToTheModelsType) {
  const std::string folder = golden_folder("llama");
  const TransformerOptions options = read_config(folder);
  auto half = transformer(options);
  half->to(at::kBFloat16);
  load_hugging_face(folder, options, *half);
  const auto whole = loaded(folder)->named_parameters();
  for (const auto& parameter : half->named_parameters()) {
    EXPECT_THAT(parameter.value(), EqualsBitwise(whole[parameter.key()].to(at::kBFloat16)));
  }
  const fs::path written = scratch();
  save_hugging_face(written, options, *half);
  EXPECT_THAT(contents(written / "config.json"), HasSubstr(R"("dtype": "bfloat16")"));
  EXPECT_EQ(
      safetensors::File(written / "model.safetensors").header().tensors.at("lm_head.weight").type,
      "BF16");
  for (const auto& parameter : loaded(written)->named_parameters()) {
    EXPECT_THAT(parameter.value(),
                EqualsBitwise(whole[parameter.key()].to(at::kBFloat16).to(at::kFloat)));
  }
}

using Tensors = std::map<std::string, at::Tensor>;

// Makes a copy of a golden folder, with changed tensors and all of them in one file.
fs::path changed(const std::string& name, const std::function<void(Tensors&)>& change) {
  const fs::path folder = scratch();
  save_hugging_face(folder, read_config(golden_folder(name)), *loaded(golden_folder(name)));
  Tensors tensors;
  {
    const safetensors::File file(folder / "model.safetensors");
    for (const auto& [key, entry] : file.header().tensors) tensors[key] = file.read(key);
  }
  change(tensors);
  safetensors::write(folder / "model.safetensors", {tensors.begin(), tensors.end()});
  return folder;
}

TEST(HuggingFace, NamesOfOlderFilesAreUnderstood) {
  // A file whose names lack the prefix, and which has masks and the tied head's matrix, gives the
  // same parameters.
  const fs::path folder = changed("gpt2", [](Tensors& tensors) {
    Tensors bare;
    for (const auto& [name, tensor] : tensors)
      bare[name.substr(std::string("transformer.").size())] = tensor;
    bare["h.0.attn.bias"] = at::ones({1, 1, 8, 8}).tril();
    bare["h.1.attn.masked_bias"] = at::scalar_tensor(-1e4);
    bare["lm_head.weight"] = bare["wte.weight"];
    tensors = bare;
  });
  EXPECT_THAT(loaded(folder)->parameters(),
              EqualsBitwise(loaded(golden_folder("gpt2"))->parameters()));
  const fs::path llama = changed("llama", [](Tensors& tensors) {
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({1});
  });
  EXPECT_THAT(loaded(llama)->parameters(),
              EqualsBitwise(loaded(golden_folder("llama"))->parameters()));
}

// --- refused

void expect_refused(const std::function<void()>& call, const std::string& part) {
  SCOPED_TRACE(part);
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(HuggingFace, WrongTensorsAreRefusedAndNothingIsLoaded) {
  struct Mistake {
    std::string model;
    std::function<void(Tensors&)> change;
    std::string part;
  };
  for (const Mistake& mistake : std::vector<Mistake>{
           {"gpt2", [](Tensors& t) { t.erase("transformer.ln_f.bias"); },
            "it has no 'transformer.ln_f.bias'"},
           {"gpt2_untied", [](Tensors& t) { t.erase("lm_head.weight"); },
            "it has no 'lm_head.weight'; if the head multiplies with the embedding's matrix, set "
            "tie_word_embeddings to true"},
           {"llama",
            [](Tensors& t) {
              t["model.layers.0.self_attn.qkv_proj.weight"] = at::ones({16, 8});
              t.erase("model.layers.0.self_attn.q_proj.weight");
            },
            "it has no 'model.layers.0.self_attn.q_proj.weight'; it has "
            "'model.layers.0.self_attn.qkv_proj.weight', of which the model knows nothing: is "
            "config.json that of another model?"},
           {"gpt2", [](Tensors& t) { t.clear(); }, "and 25 more"},
           {"gpt2", [](Tensors& t) { t["transformer.h.2.ln_1.bias"] = at::ones({8}); },
            "it has 'transformer.h.2.ln_1.bias', of which the model knows nothing"},
           {"llama", [](Tensors& t) { t["model.layers.0.self_attn.q_proj.bias"] = at::ones({8}); },
            "it has 'model.layers.0.self_attn.q_proj.bias'"},
           // GPT-2's Conv1D has its matrices transposed. This file's matrix is not.
           {"gpt2",
            [](Tensors& t) {
              t["transformer.h.1.mlp.c_fc.weight"] = at::ones({32, 8});
            },
            "'transformer.h.1.mlp.c_fc.weight' is [32, 8], the options (config.json) ask for "
            "[8, 32]"},
           {"llama",
            [](Tensors& t) {
              t["model.layers.0.self_attn.k_proj.weight"] = at::ones({8, 8});
            },
            "'model.layers.0.self_attn.k_proj.weight' is [8, 8], the options (config.json) ask for "
            "[4, 8]"},
           {"llama_tied",
            [](Tensors& t) {
              t["lm_head.weight"] = at::ones({13, 8});
            },
            "'lm_head.weight' is not 'model.embed_tokens.weight'"},
       }) {
    const fs::path folder = changed(mistake.model, mistake.change);
    const TransformerOptions options = read_config(folder);
    auto model = transformer(options);
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter.clone());
    expect_refused([&] { load_hugging_face(folder, options, *model); }, mistake.part);
    EXPECT_THAT(model->parameters(), EqualsBitwise(before));
  }
}

TEST(HuggingFace, OtherThanFloatingPointIsNotTakenForWeights) {
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const TransformerOptions options = read_config(golden_folder("llama"));
  for (const auto& [type, text] :
       std::vector<std::pair<at::ScalarType, std::string>>{{at::kChar, "I8"},
                                                           {at::kByte, "U8"},
                                                           {at::kLong, "I64"},
                                                           {at::kBool, "BOOL"},
                                                           {at::kUInt16, "U16"},
                                                           {at::kComplexFloat, "C64"}}) {
    const auto change = [&, type = type](Tensors& t) { t[name] = at::ones_like(t[name]).to(type); };
    const fs::path folder = changed("llama", change);
    auto model = transformer(options);
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter.clone());
    expect_refused([&] { load_hugging_face(folder, options, *model); },
                   "'" + name + "' is of the type " + text +
                       ", which is not a floating-point type; save the model in one");
    EXPECT_THAT(model->parameters(), EqualsBitwise(before));
  }
  for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16}) {
    loaded(changed("llama", [&](Tensors& t) { t[name] = t[name].to(type); }));
  }
  // The saved matrix of a tied head is compared without a conversion, so a matrix of another type
  // is refused.
  const fs::path folder = changed("llama_tied", [](Tensors& t) {
    t["lm_head.weight"] = t["model.embed_tokens.weight"].to(at::kDouble);
  });
  expect_refused([&] { loaded(folder); }, "'lm_head.weight' is not 'model.embed_tokens.weight'");
}

TEST(HuggingFace, APaddedVocabularyAndAnotherModelAreSaid) {
  const std::string name = "model.embed_tokens.weight";
  const fs::path padded = changed("llama_tied", [&](Tensors& t) {
    t[name] = at::constant_pad_nd(t[name], {0, 0, 0, 3});
  });
  expect_refused([&] { loaded(padded); },
                 "'" + name +
                     "' is [16, 8], the options (config.json) ask for [13, 8]: to take the file's "
                     "vocabulary, set vocab_size to 16");
  const fs::path cut =
      changed("llama_tied", [&](Tensors& t) { t[name] = t[name].slice(0, 0, 11); });
  expect_refused([&] { loaded(cut); },
                 "ask for [13, 8]: to take the file's vocabulary, set "
                 "vocab_size to 11");
  const fs::path other = scratch();
  const TransformerOptions llama = read_config(golden_folder("llama"));
  save_hugging_face(other, llama, *transformer(llama));
  std::ofstream(other / "config.json") << contents(golden_folder("gpt2") + "/config.json");
  expect_refused([&] { loaded(other); },
                 "and 25 more; its 'lm_head.weight' is of another model than the 'gpt2' of "
                 "config.json");
}

// --- written back

TEST(HuggingFace, WhatWasReadIsWrittenBackAsItCame) {
  // The folder has a model of bfloat16, and fields and files that this package has no use for.
  const fs::path folder = scratch(), written = scratch();
  const TransformerOptions options = read_config(golden_folder("llama"));
  auto half = loaded(golden_folder("llama"));
  half->to(at::kBFloat16);
  save_hugging_face(folder, options, *half);
  auto config = nlohmann::json::parse(contents(folder / "config.json"));
  config["eos_token_id"] = {1, 2};
  config["pad_token_id"] = 0;
  std::ofstream(folder / "config.json") << config;
  const std::map<std::string, std::string> texts = {
      {"generation_config.json", R"({"eos_token_id": [1, 2]})"},
      {"tokenizer.json", "{}"},
      {"tokenizer.model", std::string("\0\1", 2)},
      {"LICENSE", "free"}};
  for (const auto& [name, text] : texts) std::ofstream(folder / name) << text;
  std::ofstream(folder / "pytorch_model.bin") << "other weights";
  std::ofstream(folder / "adapter_config.json") << "{}";  // of adapters, which are not written

  auto model = transformer(options);  // in float32
  load_hugging_face(folder, options, *model);
  const auto save = [&](const SaveHuggingFaceOptions& how, const TransformerOptions& now) {
    save_hugging_face(written, now, *model, how);
    return nlohmann::json::parse(contents(written / "config.json"));
  };
  const auto source = SaveHuggingFaceOptions().source(folder);
  EXPECT_EQ(save(source, options), config);
  for (const auto& [name, text] : texts) EXPECT_EQ(contents(written / name), text) << name;
  EXPECT_FALSE(fs::exists(written / "pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(written / "adapter_config.json"));
  EXPECT_EQ(contents(written / "model.safetensors"), contents(folder / "model.safetensors"));
  // If the model is saved in another type or with other options, the fields that do not depend on
  // them stay as in the source.
  auto want = config;
  want["dtype"] = "float32";
  EXPECT_EQ(save(SaveHuggingFaceOptions(source).type(at::kFloat), options), want);
  EXPECT_EQ(
      safetensors::File(written / "model.safetensors").header().tensors.at("lm_head.weight").type,
      "F32");
  const auto other = save(source, TransformerOptions(options).attention_dropout(0.5));
  EXPECT_EQ(other["attention_dropout"], 0.5);
  EXPECT_EQ(other["eos_token_id"], config["eos_token_id"]);
  EXPECT_EQ(other["dtype"], "bfloat16");
  // A model may be saved into the folder that is its source.
  save_hugging_face(folder, options, *model, source);
  EXPECT_THAT(loaded(folder)->parameters(), EqualsBitwise(model->parameters()));
  EXPECT_EQ(nlohmann::json::parse(contents(folder / "config.json")), config);
  // A source that does not exist leaves everything unchanged.
  const fs::path fresh = scratch() / "fresh";
  expect_refused(
      [&] {
        save_hugging_face(fresh, options, *model,
                          SaveHuggingFaceOptions().source(written / "none"));
      },
      "none");
  EXPECT_FALSE(fs::exists(fresh));
}

TEST(HuggingFace, DamagedFoldersAreRefused) {
  const fs::path folder = scratch();
  expect_refused([&] { read_config(folder); }, "config.json");
  std::ofstream(folder / "config.json") << R"({"model_type": "bert"})";
  expect_refused([&] { read_config(folder); }, folder.string());

  for (const auto& entry : fs::directory_iterator(golden_folder("llama"))) {
    fs::copy_file(entry.path(), folder / entry.path().filename(),
                  fs::copy_options::overwrite_existing);
  }
  loaded(folder);
  const std::string index = contents(folder / "model.safetensors.index.json");
  const auto with = [&](const std::string& text) {
    std::ofstream(folder / "model.safetensors.index.json") << text;
    return [&] { loaded(folder); };
  };
  const std::string second = "model-00002-of-00002.safetensors";
  const auto replaced = [&](const std::string& replacement) {
    std::string text = index;
    for (size_t place = 0; (place = text.find(second, place)) != std::string::npos;
         place += replacement.size()) {
      text.replace(place, second.size(), replacement);
    }
    return text;
  };
  expect_refused(with("[]"), "has no weight_map");
  expect_refused(with("{"), "has no weight_map");
  expect_refused(with(replaced("../" + second)), "must be a name in the folder");
  expect_refused(with(replaced("..")), "must be a name in the folder");
  expect_refused(with(replaced("another.safetensors")), "No such file");
  expect_refused(with(replaced("model-00001-of-00002.safetensors")),
                 "is in model-00001-of-00002.safetensors, where it is not");
  with(index);
  fs::copy_file(folder / second, folder / "again.safetensors");
  expect_refused(with(R"({"weight_map": {"a": "again.safetensors", "b": ")" + second + "\"}}"),
                 "is in ");
  with(index);
  fs::resize_file(folder / second, fs::file_size(folder / second) - 1);
  expect_refused([&] { loaded(folder); }, second);
  fs::remove(folder / "model.safetensors.index.json");
  expect_refused([&] { loaded(folder); }, "there is neither model.safetensors nor");
  std::ofstream(folder / "pytorch_model.bin") << "x";
  expect_refused([&] { loaded(folder); }, "; pytorch_model.bin is of another format: read it with");
  std::ofstream(folder / "adapter_config.json") << "{}";
  expect_refused([&] { loaded(folder); }, "; it is the folder of an adapter: read the one of");
  fs::remove(folder / "config.json");
  expect_refused([&] { loaded(folder); }, "config.json; it is the folder of an adapter: read the");
}

// While this object lives, a process of root has no more rights than others.
class Nobody {
 public:
  Nobody() : before_(geteuid()) { has_no_rights = before_ != 0 || seteuid(65534) == 0; }
  ~Nobody() { (void)!seteuid(before_); }
  bool has_no_rights;

 private:
  uid_t before_;
};

// Makes a new folder with the files of the golden Llama.
fs::path copy_of_llama() {
  const fs::path folder = scratch();
  for (const auto& entry : fs::directory_iterator(golden_folder("llama"))) {
    fs::copy_file(entry.path(), folder / entry.path().filename());
  }
  return folder;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

TEST(HuggingFace, AMissingShardIsNamedAndNothingIsLoaded) {
  const TransformerOptions options = read_config(golden_folder("llama"));
  auto model = transformer(options);
  const std::vector<at::Tensor> before = copies_of(model->parameters());
  const fs::path folder = copy_of_llama();
  const fs::path second = folder / "model-00002-of-00002.safetensors";
  fs::remove(second);
  expect_refused([&] { load_hugging_face(folder, options, *model); },
                 second.string() + ": No such file");
  EXPECT_THAT(model->parameters(), EqualsBitwise(before));
}

TEST(HuggingFace, AFolderWithoutRightsIsNamedAndNothingIsLoaded) {
  if (!Nobody().has_no_rights) GTEST_SKIP() << "root cannot become another user here";
  const TransformerOptions options = read_config(golden_folder("llama"));
  auto model = transformer(options);
  const std::vector<at::Tensor> before = copies_of(model->parameters());
  const fs::path folder = copy_of_llama();
  fs::permissions(folder, fs::perms::none);
  {
    const Nobody nobody;
    const std::string path = folder.string();
    expect_refused([&] { read_config(folder); },
                   "cannot read " + path + "/config.json: Permission denied");
    expect_refused([&] { load_hugging_face(folder, options, *model); },
                   "cannot load the weights of " + path);
    expect_refused([&] { load_hugging_face(folder, options, *model); }, "Permission denied");
    expect_refused([&] { save_hugging_face(folder, options, *model); }, path);
    expect_refused([&] { save_hugging_face(folder / "new", options, *model); }, path + "/new");
  }
  fs::permissions(folder, fs::perms::owner_all);
  EXPECT_THAT(model->parameters(), EqualsBitwise(before));
}

TEST(HuggingFace, AModuleOfOtherOptionsIsTheCallersMistake) {
  const std::string folder = golden_folder("gpt2");
  const TransformerOptions options = read_config(folder);
  const fs::path written = scratch();
  for (const auto& [model, part] : std::vector<std::pair<torch::nn::Sequential, std::string>>{
           {transformer(TransformerOptions(options).num_layers(1)), "has no parameter 'block1"},
           {transformer(TransformerOptions(options).num_layers(3)), "has the parameter 'block2"},
           {transformer(TransformerOptions(options).tied(false)),
            "has the parameter 'head.weight'"},
           {transformer(TransformerOptions(options).vocab_size(14)),
            "is [14, 8], that of the options [13, 8]"},
           {loaded(golden_folder("llama")), "has no parameter"}}) {
    SCOPED_TRACE(part);
    for (const bool load : {false, true}) {
      try {
        load ? load_hugging_face(folder, options, *model)
             : save_hugging_face(written, options, *model);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const c10::ValueError& error) {
        EXPECT_THAT(error.what(), HasSubstr(part));
      }
    }
  }
  EXPECT_TRUE(fs::is_empty(written));
  auto mixed = transformer(options);
  mixed->ptr(1)->to(at::kDouble);
  EXPECT_THROW(save_hugging_face(written, options, *mixed), c10::ValueError);
  EXPECT_THROW(save_hugging_face(written, options, *transformer(options), 0), c10::ValueError);
}

TEST(HuggingFace, AModelOnMetaIsRefused) {
  const std::string folder = golden_folder("gpt2");
  const TransformerOptions options = read_config(folder);
  const torch::nn::Sequential model = [&] {
    const MetaScope meta;
    return transformer(options);
  }();
  EXPECT_THAT([&] { load_hugging_face(folder, options, *model); },
              ::testing::ThrowsMessage<c10::ValueError>(HasSubstr("is on meta")));
}

TEST(HuggingFace, AFolderWithoutWeightsGetsNoConfig) {
  const fs::path folder = scratch();
  const TransformerOptions options = read_config(golden_folder("gpt2"));
  fs::create_directories(folder / "model.safetensors" / "in the way");
  EXPECT_THROW(save_hugging_face(folder, options, *transformer(options)), std::runtime_error);
  EXPECT_FALSE(fs::exists(folder / "config.json"));
}

// The contents of all files of a folder by their names.
std::map<std::string, std::string> snapshot(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename()] = entry.is_directory() ? "a folder" : contents(entry.path());
  }
  return files;
}

TEST(HuggingFace, PiecesOfAnEarlierSaveAreRemoved) {
  const TransformerOptions options = read_config(golden_folder("gpt2"));
  const auto names = [&](int64_t bytes) {
    const fs::path folder = scratch();
    save_hugging_face(folder, options, *transformer(options), bytes);
    std::vector<std::string> result;
    for (const auto& [name, content] : snapshot(folder)) result.push_back(name);
    return result;
  };
  const fs::path folder = scratch();
  // Files that the index does not name, or whose names are not those of pieces, are kept.
  const std::set<std::string> others = {"model-00001-of-00077.safetensors", "notes.safetensors",
                                        "tokenizer.json"};
  for (const std::string& name : others) std::ofstream(folder / name) << "kept";
  for (const int64_t bytes : {1000, 4000, 1000, 4000, 1'000'000}) {
    save_hugging_face(folder, options, *transformer(options), bytes);
    auto files = snapshot(folder);
    for (const std::string& name : others) {
      EXPECT_EQ(files[name], "kept") << name;
      files.erase(name);
    }
    std::vector<std::string> have;
    for (const auto& [name, content] : files) have.push_back(name);
    EXPECT_EQ(have, names(bytes));
  }
  // An index cannot make a save remove anything but pieces in the folder.
  const fs::path outside = scratch() / "model-00001-of-00002.safetensors";
  std::ofstream(outside) << "kept";
  nlohmann::json map = {
      {"a", "notes.safetensors"}, {"b", outside.string()}, {"c", 3}, {"d", "config.json"}};
  map["e"] = "../" + outside.parent_path().filename().string() + "/" + outside.filename().string();
  const std::string piece = "model-00002-of-00002.safetensors";
  map["f"] = piece;
  std::ofstream(folder / piece) << "removed";
  std::ofstream(folder / "model.safetensors.index.json") << R"({"weight_map": )" + map.dump() + "}";
  save_hugging_face(folder, options, *transformer(options));
  EXPECT_EQ(contents(outside), "kept");
  EXPECT_EQ(contents(folder / "notes.safetensors"), "kept");
  EXPECT_FALSE(fs::exists(folder / piece));
  for (const char* text : {"", "[]", R"({"weight_map": 3})", R"({"weight_map": {"a")"}) {
    std::ofstream(folder / "model.safetensors.index.json") << text;
    save_hugging_face(folder, options, *transformer(options), 4000);
  }
}

TEST(HuggingFace, ARefusedSaveChangesNothing) {
  const TransformerOptions options = read_config(golden_folder("llama"));
  // The cases are refused because of options, of types, and of values that are missing late in the
  // order of the files.
  const auto with_dropout = TransformerOptions(options).residual_dropout(0.1);
  auto mixed = transformer(options);
  mixed->ptr(mixed->size() - 1)->to(at::kDouble);
  auto whole_numbers = transformer(options);
  for (at::Tensor& parameter : whole_numbers->parameters()) parameter.set_requires_grad(false);
  whole_numbers->to(at::kInt);
  auto partly_meta = transformer(options);
  {
    const MetaScope meta;
    partly_meta->replace_module("head", transformer(options)->named_children()["head"]);
  }
  struct Refused {
    TransformerOptions options;
    torch::nn::Sequential model;
    std::string part;
  };
  const std::vector<Refused> cases = {
      {with_dropout, transformer(with_dropout), "has no field for"},
      {options, mixed, "must have one type"},
      {options, whole_numbers, "of a floating-point type, got Int"},
      {options, partly_meta, "is on meta"},
  };
  for (const int64_t old_bytes : {1000, 1'000'000}) {
    const fs::path folder = scratch();
    save_hugging_face(folder, options, *transformer(options), old_bytes);
    const auto before = snapshot(folder);
    for (const Refused& refused : cases) {
      for (const int64_t bytes : {1000, 1'000'000}) {
        SCOPED_TRACE(refused.part);
        EXPECT_THAT([&] { save_hugging_face(folder, refused.options, *refused.model, bytes); },
                    ::testing::ThrowsMessage<c10::ValueError>(HasSubstr(refused.part)));
        EXPECT_EQ(snapshot(folder), before);
        const fs::path other = folder / "other";
        EXPECT_THROW(save_hugging_face(other, refused.options, *refused.model, bytes),
                     c10::ValueError);
        EXPECT_FALSE(fs::exists(other));
      }
    }
  }
}

TEST(HuggingFace, AFolderInTheWayIsFoundBeforeAnythingIsWritten) {
  // With at most 4000 bytes there are three files.
  const TransformerOptions options = read_config(golden_folder("gpt2"));
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json",
                           "model-00002-of-00003.safetensors"}) {
    const fs::path folder = scratch();
    fs::create_directories(folder / name);
    expect_refused([&] { save_hugging_face(folder, options, *transformer(options), 4000); },
                   std::string(name) + ": it is a folder");
    EXPECT_EQ(snapshot(folder).size(), 1u) << name;
  }
}

TEST(HuggingFace, AnEmptyOrMissingConfigIsNamed) {
  const fs::path folder = scratch();
  expect_refused([&] { read_config(folder); }, "cannot read " + (folder / "config.json").string());
  std::ofstream(folder / "config.json").close();
  expect_refused([&] { read_config(folder); }, "cannot use " + folder.string());
}

TEST(HuggingFace, WhatWouldBeReadInsteadIsRemoved) {
  const fs::path folder = scratch();
  const TransformerOptions options = read_config(golden_folder("gpt2"));
  for (const int64_t bytes : {4000, 1'000'000, 1000}) {
    auto model = transformer(options);
    save_hugging_face(folder, options, *model, bytes);
    EXPECT_THAT(loaded(folder)->parameters(), EqualsBitwise(model->parameters()));
  }
}

}  // namespace
}  // namespace gpipe::models
