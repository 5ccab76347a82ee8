#include "examples/language_model/sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <memory>

#include "examples/language_model/documents.h"
#include "models/kv_cache.h"

namespace language_model {
namespace {

using Tokens = std::vector<int64_t>;

// The ids of the tokens [begin, end): (1, tokens).
at::Tensor ids_of(const Tokens& tokens, int64_t begin, int64_t end) {
  return at::tensor(at::ArrayRef<int64_t>(tokens.data() + begin, end - begin), at::kLong)
      .unsqueeze(0);
}

int64_t size_of(const Tokens& tokens) { return static_cast<int64_t>(tokens.size()); }

// Draws the next token of each row's document, from all tokens of the document so far.
class Writer {
 public:
  Writer(Network& network, const SampleOptions& options)
      : network_(network),
        options_(options),
        generator_(at::detail::createCPUGenerator(options.seed)) {}
  virtual ~Writer() = default;

  virtual Tokens next(const std::vector<Tokens>& documents) = 0;

 protected:
  const SampleOptions& options() const { return options_; }
  Tokens draw(const gpipe::Tensors& inputs) {
    return network_.draw(inputs, options_.temperature, generator_);
  }
  // Runs a forward for tokens that are known. The temperature is 0, so that no random number is
  // drawn.
  void look_at(const gpipe::Tensors& inputs) { (void)network_.draw(inputs, 0, generator_); }

 private:
  Network& network_;
  const SampleOptions& options_;
  at::Generator generator_;
};

class RecomputingWriter : public Writer {
 public:
  using Writer::Writer;

  Tokens next(const std::vector<Tokens>& documents) override {
    Tokens drawn;
    for (const Tokens& document : documents) {
      const int64_t end = size_of(document);
      const at::Tensor ids = ids_of(document, std::max<int64_t>(end - options().length, 0), end);
      drawn.push_back(draw({ids, at::zeros_like(ids)})[0]);
    }
    return drawn;
  }
};

class CachedWriter : public Writer {
 public:
  CachedWriter(Network& network, const SampleOptions& options)
      : Writer(network, options),
        cache_(network.module(), options.samples, options.length),
        begins_(options.samples, 0) {}

  Tokens next(const std::vector<Tokens>& documents) override {
    int64_t most = 0;
    bool alike = true;
    for (int64_t row = 0; row < cache_.rows(); ++row) {
      make_room(row, documents[row]);
      const int64_t missing = size_of(documents[row]) - seen(row);
      alike &= row == 0 || missing == most;
      most = std::max(most, missing);
    }
    std::vector<at::Tensor> ids;
    for (int64_t row = 0; row < cache_.rows(); ++row) {
      const int64_t end = size_of(documents[row]);
      if (!alike && seen(row) < end - 1) {
        look_at(cache_.inputs(ids_of(documents[row], seen(row), end - 1), {row}));
      }
      ids.push_back(ids_of(documents[row], seen(row), end));
    }
    return draw(cache_.inputs(at::cat(ids)));
  }

 private:
  // How many tokens of its document a row has seen, including tokens that the cache has dropped.
  int64_t seen(int64_t row) const { return begins_[row] + cache_.tokens(row); }

  void make_room(int64_t row, const Tokens& document) {
    const int64_t end = size_of(document);
    if (end <= seen(row)) {  // the row has begun another document
      cache_.truncate(row, 0);
      begins_[row] = 0;
    }
    if (end - begins_[row] > options().length) {
      cache_.truncate(row, 0);
      begins_[row] = end - std::max<int64_t>(options().length / 2, 1);
    }
  }

  gpipe::models::KvCache cache_;
  std::vector<int64_t> begins_;  // [row] which token of the document is the cache's first
};

}  // namespace

std::vector<std::string> write_samples(Network& network, const SampleOptions& options) {
  std::unique_ptr<Writer> writer;
  if (options.cache) {
    writer = std::make_unique<CachedWriter>(network, options);
  } else {
    writer = std::make_unique<RecomputingWriter>(network, options);
  }
  Tokens prompt = {kEnd};
  for (const char letter : options.prompt) prompt.push_back(static_cast<unsigned char>(letter));
  std::vector<Tokens> documents(options.samples, prompt);
  std::vector<std::string> texts(options.samples, options.prompt);
  for (int64_t k = 0; k < options.bytes; ++k) {
    const Tokens drawn = writer->next(documents);
    for (size_t row = 0; row < drawn.size(); ++row) {
      if (drawn[row] == kEnd) {
        documents[row] = {kEnd};
      } else {
        documents[row].push_back(drawn[row]);
        texts[row].push_back(static_cast<char>(drawn[row]));
      }
    }
  }
  return texts;
}

std::string printable(std::string text) {
  for (char& letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if ((byte < 0x20 && letter != '\n') || byte == 0x7f) letter = '?';
  }
  return text;
}

}  // namespace language_model
