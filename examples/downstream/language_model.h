// LanguageModel: a small language model of the bytes of a text, such as another team might begin
// with.
#ifndef DOWNSTREAM_LANGUAGE_MODEL_H_
#define DOWNSTREAM_LANGUAGE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/training.h"
#include "gpipe/gpipe.h"

// Makes the model and its training data, for GPipe's commands that find a cut or say whether the
// model fits.
gpipe::balance::Training make_model();

class LanguageModel {
 public:
  // `text`: at least some hundred bytes. The model has 11 layers, cut according to `balance`.
  LanguageModel(const std::string& text, const std::vector<int64_t>& balance);

  // Trains the model. Returns the loss of each step, which does not depend on the balance.
  std::vector<double> train(int64_t steps);

  // Returns the most probable continuations of the prompts. There may be at most 4 prompts, all of
  // the same length.
  std::vector<std::string> write(const std::vector<std::string>& prompts, int64_t bytes);

 private:
  torch::Tensor text_;  // numbers of bytes
  gpipe::GPipe pipe_;
};

#endif  // DOWNSTREAM_LANGUAGE_MODEL_H_
