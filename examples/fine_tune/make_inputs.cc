// Writes what fine_tune_test.sh trains on: OUT/model, a random Llama in a Hugging Face folder,
// OUT/tied, one whose head has the embedding's matrix, with a tokenizer.json, OUT/short, one with 8
// positions, OUT/capped, a Gemma 2, whose attention has a soft cap, and conversations,
// OUT/chats.safetensors and OUT/held_out.safetensors, in which the answer to a number is that
// number, three times. OUT/of_tokenizer.safetensors says that it is of OUT/tied's tokenizer. Also
// files with a mistake each, OUT/wrong_*.safetensors.
//
//   make_inputs OUT
#include <ATen/Functions.h>
#include <torch/utils.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/hugging_face.h"
#include "models/transformer.h"
#include "safetensors/safetensors.h"

namespace {

using gpipe::models::TransformerKind;
using gpipe::models::TransformerOptions;
using Numbers = std::vector<int64_t>;

constexpr int64_t kWords = 40, kQuestion = 1, kAnswer = 2, kEnd = 3;

struct Chats {
  Numbers ids, mask, offsets = {0};

  void add(const Numbers& question, const Numbers& answer) {
    const auto put = [this](int64_t id, int64_t learned) {
      ids.push_back(id);
      mask.push_back(learned);
    };
    put(kQuestion, 0);
    for (const int64_t id : question) put(id, 0);
    put(kAnswer, 0);
    for (const int64_t id : answer) put(id, 1);
    put(kEnd, 1);
    offsets.push_back(static_cast<int64_t>(ids.size()));
  }
  void write(const std::string& path,
             const std::map<std::string, std::string>& made_by = {}) const {
    gpipe::safetensors::write(path,
                              {{"ids", at::tensor(ids, at::kLong).to(at::kInt)},
                               {"mask", at::tensor(mask, at::kLong).to(at::kByte)},
                               {"offsets", at::tensor(offsets, at::kLong)}},
                              made_by);
  }
};

// Conversations about the numbers from `first` on. Their questions have several lengths.
Chats chats(int64_t first, int64_t count) {
  Chats made;
  for (int64_t k = first; k < first + count; ++k) {
    const int64_t number = 4 + k * 7 % (kWords - 4);
    made.add(Numbers(static_cast<size_t>(1 + k % 5), number), {number, number, number});
  }
  return made;
}

}  // namespace

int main(int /*argc*/, char** argv) {
  const std::string out = argv[1];
  std::filesystem::create_directories(out);
  torch::manual_seed(1);
  const auto options = TransformerOptions(TransformerKind::kLlama)
                           .vocab_size(kWords)
                           .max_positions(64)
                           .num_layers(2)
                           .hidden_size(32)
                           .num_heads(4)
                           .num_kv_heads(2)
                           .intermediate_size(48)
                           .initializer_range(0.2);
  gpipe::models::save_hugging_face(out + "/model", options, *gpipe::models::transformer(options));
  const TransformerOptions tied = TransformerOptions(options).tied(true);
  gpipe::models::save_hugging_face(out + "/tied", tied, *gpipe::models::transformer(tied));
  std::ofstream(out + "/tied/tokenizer.json") << "{}";
  const TransformerOptions few = TransformerOptions(options).max_positions(8);
  gpipe::models::save_hugging_face(out + "/short", few, *gpipe::models::transformer(few));
  const TransformerOptions capped = gpipe::models::options_from_config(
      R"({"model_type": "gemma2", "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
          "intermediate_size": 48, "max_position_embeddings": 64, "sliding_window": 8,
          "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0})");
  gpipe::models::save_hugging_face(out + "/capped", capped, *gpipe::models::transformer(capped));
  chats(0, 60).write(out + "/chats.safetensors");
  chats(60, 11).write(out + "/held_out.safetensors");

  chats(0, 60).write(out + "/of_tokenizer.safetensors",
                     {{"tokenizer.json", "2 bytes, CRC-32 a3a6bf43"}});
  chats(0, 60).write(out + "/wrong_tokenizer.safetensors",
                     {{"tokenizer.json", "3 bytes, CRC-32 00000000"}});
  Chats shorter = chats(0, 3), beyond = chats(0, 3), none = chats(0, 3), falling = chats(0, 3);
  shorter.mask.pop_back();
  shorter.write(out + "/wrong_mask.safetensors");
  beyond.ids[4] = kWords;
  beyond.write(out + "/wrong_id.safetensors");
  none.mask.assign(none.mask.size(), 0);
  none.write(out + "/wrong_answers.safetensors");
  std::swap(falling.offsets[1], falling.offsets[2]);
  falling.write(out + "/wrong_offsets.safetensors");
  gpipe::safetensors::write(out + "/wrong_names.safetensors", {{"ids", at::zeros({3}, at::kLong)}});
  return 0;
}
