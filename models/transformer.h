// transformer: decoder-only language models (GPT-2, Llama, Mistral, Qwen, Gemma, ...) as a flat
// Sequential.
#ifndef MODELS_TRANSFORMER_H_
#define MODELS_TRANSFORMER_H_

#include <torch/nn/modules/container/sequential.h>

#include "models/transformer_options.h"

namespace gpipe::models {

// The layers are "embedding", "block0_attention", "block0_mlp", "block1_attention", ..., "norm",
// "head": 2 * num_layers + 3. Each returns one tensor.
//
// Takes token ids, whole numbers of shape [rows, tokens], gives logits of shape [rows, tokens,
// vocab_size]: those in row i, place t are for the token behind the first t + 1 tokens of row i.
// Cosines and sines of rotary positions are computed, not kept: nothing but parameters is saved.
//
// Outputs and gradients are those of Python's `transformers` with attention "eager", for the
// families in models/families/families.cc; models/hugging_face.h reads and writes its files. As
// there, RMSNorms, softmax and rotation angles are computed in float32 even in a model of float64.
//
// With `packed` the model takes two tensors, token ids and the numbers of their documents: both
// [rows, tokens]. Padding is a document of its own.
//
// With head_in_loss the model returns vectors, and HeadLoss (models/head_loss.h) computes logits
// from them, some at a time.
//
// A tied head has no parameter of its own, so `parameters()` has the matrix once; its gradient is
// the sum of both uses. The model cannot be cloned. Without a pipeline, which copies the matrix
// where it is needed (TiedLayer), head and embedding must be on one device.
//
// Throws c10::ValueError for options that do not make a network. The layers throw it for inputs
// that are not token ids and, with learned positions, for sequences longer than max_positions.
//
// Example:
//   auto model = gpipe::models::transformer(gpipe::models::gpt2_small());
//   auto logits = model->forward(ids);
torch::nn::Sequential transformer(const TransformerOptions& options);

}  // namespace gpipe::models

#endif  // MODELS_TRANSFORMER_H_
