// Fields of config.json that several families have. Each function reads or writes.
#ifndef MODELS_FAMILIES_SHARED_FIELDS_H_
#define MODELS_FAMILIES_SHARED_FIELDS_H_

#include <cstdint>
#include <string>

#include "models/families/config_fields.h"
#include "models/transformer_options.h"

namespace gpipe::models::internal {

struct Sizes {
  int64_t vocabulary, hidden, inner, layers, heads, kv_heads, positions;  // kv_heads 0: as heads
  double epsilon = 1e-6;
  bool tied = false;
  double deviation = 0.02;
  const char* epsilon_name = "rms_norm_eps";
};

enum class NullKvHeads : uint8_t { kRefused, kAsHeads };

void sizes(ConfigFields& fields, TransformerOptions& options, const Sizes& otherwise,
           NullKvHeads null_kv_heads = NullKvHeads::kAsHeads);

// The size of a head, which need not be hidden_size / num_attention_heads.
void head_size(ConfigFields& fields, TransformerOptions& options);

// The field `head_dim` for classes of transformers that do not declare it but look for it.
void unlisted_head_size(ConfigFields& fields, TransformerOptions& options);

void activation(ConfigFields& fields, TransformerOptions& options, const char* name,
                const std::string& otherwise);

// The single flag for the biases of queries, keys, values and attention's output.
void attention_bias(ConfigFields& fields, TransformerOptions& options, bool otherwise = false);

// The window of a layer that has one; 0 if none has.
int64_t any_window(const BlockOptions& block);

// A window that is used only if a second field, use_sliding_window, says so. Returns 0 if it is
// not used.
int64_t switched_window(ConfigFields& fields, const TransformerOptions& options, int64_t otherwise);

}  // namespace gpipe::models::internal

#endif  // MODELS_FAMILIES_SHARED_FIELDS_H_
