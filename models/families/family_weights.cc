#include "models/families/family_weights.h"

namespace gpipe::models::internal {
namespace {

std::vector<WeightName> plus(std::vector<WeightName> names, const std::vector<WeightName>& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

std::vector<WeightName> llama_attention() {
  return {{"layers.#.self_attn.q_proj", "block#_attention.qkv", WeightPart::kQueries},
          {"layers.#.self_attn.k_proj", "block#_attention.qkv", WeightPart::kKeys},
          {"layers.#.self_attn.v_proj", "block#_attention.qkv", WeightPart::kValues},
          {"layers.#.self_attn.o_proj", "block#_attention.output"}};
}

std::vector<WeightName> gated_mlp() {
  return {{"layers.#.mlp.gate_proj", "block#_mlp.gate"},
          {"layers.#.mlp.up_proj", "block#_mlp.up"},
          {"layers.#.mlp.down_proj", "block#_mlp.down"}};
}

// The experts of Qwen. Blocks with experts may alternate with blocks that have an MLP.
std::vector<WeightName> expert_mlp() {
  return {{"layers.#.mlp.experts.@.gate_proj", "block#_mlp.gate_up", WeightPart::kExpertGate},
          {"layers.#.mlp.experts.@.up_proj", "block#_mlp.gate_up", WeightPart::kExpertUp},
          {"layers.#.mlp.experts.@.down_proj", "block#_mlp.down", WeightPart::kExpert}};
}

std::vector<WeightName> fused_expert_mlp() {
  return {{"layers.#.mlp.experts.gate_up_proj", "block#_mlp.gate_up", WeightPart::kAllExperts},
          {"layers.#.mlp.experts.down_proj", "block#_mlp.down", WeightPart::kAllExperts}};
}

std::vector<WeightName> router() { return {{"layers.#.mlp.gate", "block#_mlp.router"}}; }

std::vector<WeightName> shared_expert() {
  return {{"layers.#.mlp.shared_expert.gate_proj", "block#_mlp.shared_gate"},
          {"layers.#.mlp.shared_expert.up_proj", "block#_mlp.shared_up"},
          {"layers.#.mlp.shared_expert.down_proj", "block#_mlp.shared_down"},
          {"layers.#.mlp.shared_expert_gate", "block#_mlp.shared_router"}};
}

std::vector<WeightName> norms_before() {
  return {{"layers.#.input_layernorm", "block#_attention.norm"},
          {"layers.#.post_attention_layernorm", "block#_mlp.norm"}};
}

std::vector<WeightName> head_norms() {
  return {{"layers.#.self_attn.q_norm", "block#_attention.query_norm"},
          {"layers.#.self_attn.k_norm", "block#_attention.key_norm"}};
}

// The names of the embedding, of the blocks, and of the last norm.
std::vector<WeightName> around(const std::vector<WeightName>& blocks) {
  std::vector<WeightName> names = {{"embed_tokens", "embedding.tokens"}};
  names.insert(names.end(), blocks.begin(), blocks.end());
  names.push_back({"norm", "norm"});
  return names;
}

// `attention`: the attention's weights besides those of queries, keys, values and output. The list
// also has the MLP of blocks without experts, whose `down` has the same name as the experts'
// matrix.
std::vector<WeightName> qwen_expert_weights(const std::vector<WeightName>& attention,
                                            const std::vector<WeightName>& experts,
                                            const std::vector<WeightName>& shared) {
  return around(
      plus(plus(plus(plus(plus(plus(llama_attention(), attention), router()), experts), shared),
                gated_mlp()),
           norms_before()));
}

// `head_norms`: the norms of queries and keys, if the family has them.
std::vector<WeightName> later_gemma_weights(const std::vector<WeightName>& head_norms) {
  return around(plus(plus(plus(llama_attention(), head_norms), gated_mlp()),
                     {{"layers.#.input_layernorm", "block#_attention.norm"},
                      {"layers.#.post_attention_layernorm", "block#_attention.post_norm"},
                      {"layers.#.pre_feedforward_layernorm", "block#_mlp.norm"},
                      {"layers.#.post_feedforward_layernorm", "block#_mlp.post_norm"}}));
}

}  // namespace

std::pair<int64_t, int64_t> rows_of(WeightPart part, const TransformerOptions& options,
                                    int64_t rows) {
  const int64_t queries = options.num_heads() * options.size_of_head(),
                keys = options.kv_heads() * options.size_of_head();
  switch (part) {
    case WeightPart::kQueries:
      return {0, queries};
    case WeightPart::kKeys:
      return {queries, queries + keys};
    case WeightPart::kValues:
      return {queries + keys, rows};
    default:
      return {0, rows};
  }
}

bool is_of_experts(WeightPart part) {
  return part == WeightPart::kExpertGate || part == WeightPart::kExpertUp ||
         part == WeightPart::kExpert || part == WeightPart::kAllExperts;
}

std::vector<WeightName> gpt2_weights(WeightPart matrix) {
  return {{"wte", "embedding.tokens"},
          {"wpe", "embedding.positions"},
          {"h.#.ln_1", "block#_attention.norm"},
          {"h.#.attn.c_attn", "block#_attention.qkv", matrix},
          {"h.#.attn.c_proj", "block#_attention.output", matrix},
          {"h.#.ln_2", "block#_mlp.norm"},
          {"h.#.mlp.c_fc", "block#_mlp.up", matrix},
          {"h.#.mlp.c_proj", "block#_mlp.down", matrix},
          {"ln_f", "norm"}};
}

std::vector<WeightName> llama_weights() {
  return around(plus(plus(llama_attention(), gated_mlp()), norms_before()));
}

std::vector<WeightName> llama_weights_with_head_norms() {
  return around(plus(plus(plus(llama_attention(), head_norms()), gated_mlp()), norms_before()));
}

std::vector<WeightName> phi3_weights() {
  return around(plus({{"layers.#.self_attn.o_proj", "block#_attention.output"},
                      {"layers.#.self_attn.qkv_proj", "block#_attention.qkv"},
                      {"layers.#.mlp.gate_up_proj", "block#_mlp.up"},
                      {"layers.#.mlp.down_proj", "block#_mlp.down"}},
                     norms_before()));
}

std::vector<WeightName> olmo2_weights() {
  return around(plus(plus(plus(llama_attention(), head_norms()), gated_mlp()),
                     {{"layers.#.post_attention_layernorm", "block#_attention.post_norm"},
                      {"layers.#.post_feedforward_layernorm", "block#_mlp.post_norm"}}));
}

std::vector<WeightName> mixtral_weights() {
  return around(
      plus(plus(llama_attention(),
                {{"layers.#.block_sparse_moe.gate", "block#_mlp.router"},
                 {"layers.#.block_sparse_moe.experts.@.w1", "block#_mlp.gate_up",
                  WeightPart::kExpertGate},
                 {"layers.#.block_sparse_moe.experts.@.w2", "block#_mlp.down", WeightPart::kExpert},
                 {"layers.#.block_sparse_moe.experts.@.w3", "block#_mlp.gate_up",
                  WeightPart::kExpertUp}}),
           norms_before()));
}

std::vector<WeightName> fused_mixtral_weights() {
  return around(plus(plus(plus(llama_attention(), router()), fused_expert_mlp()), norms_before()));
}

std::vector<WeightName> qwen2_moe_weights(bool fused) {
  return qwen_expert_weights({}, fused ? fused_expert_mlp() : expert_mlp(), shared_expert());
}

std::vector<WeightName> qwen3_moe_weights(bool fused) {
  return qwen_expert_weights(head_norms(), fused ? fused_expert_mlp() : expert_mlp(), {});
}

std::vector<WeightName> gemma2_weights() { return later_gemma_weights({}); }

std::vector<WeightName> gemma3_weights() { return later_gemma_weights(head_norms()); }

std::vector<WeightName> gpt_neox_weights() {
  return {{"embed_in", "embedding.tokens"},
          {"layers.#.input_layernorm", "block#_attention.norm"},
          {"layers.#.post_attention_layernorm", "block#_mlp.norm"},
          {"layers.#.attention.query_key_value", "block#_attention.qkv"},
          {"layers.#.attention.dense", "block#_attention.output"},
          {"layers.#.mlp.dense_h_to_4h", "block#_mlp.up"},
          {"layers.#.mlp.dense_4h_to_h", "block#_mlp.down"},
          {"final_layer_norm", "norm"}};
}

std::vector<WeightName> starcoder2_weights() {
  return around(plus(plus(llama_attention(), {{"layers.#.mlp.c_fc", "block#_mlp.up"},
                                              {"layers.#.mlp.c_proj", "block#_mlp.down"}}),
                     norms_before()));
}

}  // namespace gpipe::models::internal
