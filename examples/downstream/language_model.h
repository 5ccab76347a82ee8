// LanguageModel: a small language model of a text's bytes, as another team would begin its own.
#ifndef DOWNSTREAM_LANGUAGE_MODEL_H_
#define DOWNSTREAM_LANGUAGE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/training.h"
#include "gpipe/gpipe.h"

// What it is and what it is trained on, for GPipe's commands: how it is cut, whether it fits.
gpipe::balance::Training make_model();

class LanguageModel {
 public:
  // `text`: at least some hundred bytes. 11 layers, cut according to `balance`.
  LanguageModel(const std::string& text, const std::vector<int64_t>& balance);

  // Trains it. Returns the loss of each step, which does not depend on the balance.
  std::vector<double> train(int64_t steps);

  // What it finds most probable behind each of these, all as long; at most 4.
  std::vector<std::string> write(const std::vector<std::string>& prompts, int64_t bytes);

 private:
  torch::Tensor text_;  // numbers of bytes
  gpipe::GPipe pipe_;
};

#endif  // DOWNSTREAM_LANGUAGE_MODEL_H_
