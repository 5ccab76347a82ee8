#include "models/kv_cache.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/live_memory.h"
#include "models/transformer.h"

namespace gpipe::models {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;

constexpr TransformerKind kKinds[] = {TransformerKind::kGPT2, TransformerKind::kLlama};

TransformerOptions small(TransformerKind kind) {
  TransformerOptions options(kind);
  options.vocab_size(23).max_positions(12).num_layers(2).hidden_size(16).num_heads(4);
  options.packed(true).initializer_range(0.3);
  if (kind == TransformerKind::kLlama) options.num_kv_heads(2).intermediate_size(20);
  return options;
}

torch::nn::Sequential make(const TransformerOptions& options) {
  torch::manual_seed(2);
  auto model = transformer(options);
  model->eval();
  return model;
}

at::Tensor random_ids(int64_t rows, int64_t tokens) {
  return at::randint(23, {rows, tokens}, at::kLong);
}

at::Tensor whole(torch::nn::Sequential& model, const at::Tensor& ids) {
  return model->forward(Tensors{ids, at::zeros_like(ids)});
}

TransformerOptions without_windows(TransformerOptions options) {
  auto kinds = options.block().kinds();
  for (LayerKind& kind : kinds) kind.window(0);
  options.block().kinds(kinds);
  return options;
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// How far logits, which are of order ten, may be apart. The bound for Llama is larger, because its
// norms, softmax and angles are computed in float32.
double tolerance(const TransformerOptions& options, at::ScalarType type) {
  return type == at::kDouble && options.kind() == TransformerKind::kGPT2 ? 1e-12 : 5e-5;
}

std::vector<TransformerOptions> all_options() {
  std::vector<TransformerOptions> all;
  for (const TransformerKind kind : kKinds) {
    for (const bool fused : {false, true}) all.push_back(small(kind).fused_attention(fused));
  }
  all.push_back(small(TransformerKind::kLlama).num_kv_heads(1).tied(true));
  // The first layer has a window and other angles, as in Gemma; the second has no positions, as in
  // SmolLM.
  TransformerOptions mixed = small(TransformerKind::kLlama);
  mixed.block()
      .norm_place(NormPlace::kBoth)
      .head_norm(HeadNorm::kEachHead)
      .attention_soft_cap(3)
      .kinds({LayerKind().window(3).rotary(RotaryOptions().theta(50)), LayerKind().rotates(false)})
      .kind_of_block({0, 1});
  all.push_back(mixed);
  mixed.fused_attention(true).block().attention_soft_cap(0).kind_of_block({1, 0});
  all.push_back(mixed);
  return all;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(KvCache, GivesTheLogitsOfAWholeForward) {
  const at::NoGradGuard no_grad;
  for (const TransformerOptions& options : all_options()) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      SCOPED_TRACE(::testing::Message() << to_text(options.kind()) << ", fused "
                                        << options.fused_attention() << ", " << type);
      auto model = make(options);
      model->to(type);
      const at::Tensor ids = random_ids(3, 12);
      const at::Tensor want = whole(model, ids);
      ASSERT_GT(want.abs().max().item<double>(), 1);
      const double bound = tolerance(options, type);
      // The text is given in pieces: a prompt of several tokens and then single ones, pieces of
      // mixed sizes, or all tokens in one call.
      for (const std::vector<int64_t>& pieces :
           {std::vector<int64_t>{5, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 4, 1, 5}, {12}}) {
        KvCache cache(*model, 3, 12);
        int64_t begin = 0;
        for (const int64_t tokens : pieces) {
          const at::Tensor logits = model->forward(cache.inputs(ids.narrow(1, begin, tokens)));
          EXPECT_LE(apart(logits, want.narrow(1, begin, tokens)), bound) << "from " << begin;
          begin += tokens;
        }
      }
    }
  }
}

TEST(KvCache, PositionsThatDependOnTheLengthAreThoseOfTheTextSoFar) {
  const at::NoGradGuard no_grad;
  TransformerOptions options = small(TransformerKind::kLlama).max_positions(4);
  const RotaryOptions dynamic = RotaryOptions().kind(RotaryKind::kDynamic).factor(3);
  // The model has one layer, because in deeper layers keys come from vectors that were computed
  // when the text was shorter.
  options.head_size(6).num_layers(1);
  const RotaryOptions by_length =
      RotaryOptions().kind(RotaryKind::kLongRope).short_factors({1, 1, 1}).long_factors({1, 4, 9});
  for (const RotaryOptions& rotary : {dynamic, by_length}) {
    for (const int64_t window : {0, 5}) {
      options.block().kinds({LayerKind().window(window).rotary(rotary)});
      auto model = make(options), without = make(options);
      model->to(at::kDouble);
      without->to(at::kDouble);
      const at::Tensor ids = random_ids(2, 12);
      KvCache cache(*model, 3, 12);
      int64_t begin[] = {0, 0};
      // A call gives the next tokens of rows whose texts have different lengths, and grow from
      // short to long.
      const auto expect = [&](const std::vector<int64_t>& rows, int64_t tokens) {
        std::vector<at::Tensor> some, want;
        for (const int64_t row : rows) {
          some.push_back(ids[row].narrow(0, begin[row], tokens));
          const at::Tensor text = ids.narrow(0, row, 1).narrow(1, 0, begin[row] + tokens);
          want.push_back(whole(without, text)[0].narrow(0, begin[row], tokens));
          begin[row] += tokens;
        }
        const at::Tensor logits = model->forward(cache.inputs(at::stack(some), rows));
        EXPECT_LE(apart(logits, at::stack(want)), 5e-5) << begin[0] << ", " << begin[1];
      };
      expect({0}, 3);
      expect({1, 0}, 1);
      expect({0, 1}, 2);
      expect({1}, 4);
      expect({0, 1}, 3);
    }
  }
}

// Options with two layers that have this window and one layer without a window.
TransformerOptions windowed(int64_t window) {
  TransformerOptions options = small(TransformerKind::kLlama).num_layers(3);
  options.block().kinds({LayerKind().window(window), LayerKind()}).kind_of_block({0, 1, 0});
  return options;
}

TEST(KvCache, WindowsKeepNoMoreThanTheySee) {
  const at::NoGradGuard no_grad;
  for (const int64_t window : {1, 2, 3, 5, 12, 13, 30}) {
    SCOPED_TRACE(window);
    const TransformerOptions options = windowed(window);
    auto model = make(options);
    model->to(at::kDouble);
    const at::Tensor ids = random_ids(3, 24), want = whole(model, ids);
    // Some pieces are longer than the window, others shorter.
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
          {7, 2, 1, 1, 6, 1, 4, 2},
          {2, 3, 13, 1, 5},
          {24}}) {
      KvCache cache(*model, 4, 24);
      int64_t begin = 0;
      for (const int64_t tokens : pieces) {
        const std::vector<at::Tensor> inputs =
            cache.inputs(ids.narrow(1, begin, tokens), {3, 0, 2});
        const at::Tensor logits = model->forward(inputs);
        EXPECT_LE(apart(logits, want.narrow(1, begin, tokens)), 5e-5) << "from " << begin;
        EXPECT_THAT(model->forward<at::Tensor>(inputs), EqualsBitwise(logits)) << "once more";
        begin += tokens;
      }
      const int64_t place = 2 * 8 * 4 * int64_t{8};  // keys and values of four rows
      EXPECT_EQ(cache.bytes(), place * (24 + 2 * std::min<int64_t>(2 * (window - 1), 24)));
      EXPECT_EQ(cache.bytes(), kv_cache_bytes(options, 4, 24, at::kDouble));
    }
  }
}

// Texts drawn with a cache and by whole forwards are the same, because both draw with the same
// random numbers.
TEST(KvCache, TextsAreThoseOfWholeForwards) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> rows = {0, 1, 2, 3}, lengths = {2, 9, 1, 5};
  constexpr int64_t kNew = 10;
  for (const int64_t window : {1, 3, 6, 40}) {
    for (const bool sampled : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "window " << window << ", sampled " << sampled);
      GPipe pipe(make(windowed(window)), GPipeOptions({3, 4, 2}).chunks(2));
      auto plain = make(windowed(window));
      pipe->to(at::kDouble);
      plain->to(at::kDouble);
      const at::Tensor prompts = random_ids(4, 9);
      // The test draws tokens from a generator of its own, because a pipeline draws from the
      // default one.
      at::Generator generator = at::detail::createCPUGenerator(3);
      const auto choose = [&](const at::Tensor& logits) {  // (rows, 23)
        return sampled ? at::multinomial(logits.div(4).softmax(-1), 1, false, generator)
                       : logits.argmax(-1, /*keepdim=*/true);
      };
      std::vector<at::Tensor> texts;
      for (const int64_t row : rows) texts.push_back(prompts[row].narrow(0, 0, lengths[row]));
      for (int64_t i = 0; i < kNew; ++i) {
        std::vector<at::Tensor> logits;
        for (const at::Tensor& text : texts)
          logits.push_back(whole(plain, text.unsqueeze(0))[0][-1]);
        const at::Tensor next = choose(at::stack(logits));
        for (const int64_t row : rows) texts[row] = at::cat({texts[row], next[row]});
      }
      generator.set_current_seed(3);
      KvCache cache(*pipe, 4, 20);
      const at::Tensor last = at::tensor(lengths, at::kLong) - 1;
      at::Tensor next = choose(
          pipe->forward(cache.inputs(prompts, rows, lengths))[0].index({at::arange(4), last}));
      std::vector<at::Tensor> all = {next};
      for (int64_t i = 1; i < kNew; ++i) {
        next = choose(pipe->forward(cache.inputs(next))[0].select(1, 0));
        all.push_back(next);
      }
      const at::Tensor written = at::cat(all, 1);
      for (const int64_t row : rows) {
        EXPECT_TRUE(written[row].equal(texts[row].slice(0, lengths[row]))) << row;
      }
    }
  }
}

TEST(KvCache, WindowsCanBeCutWhereTheyKnowWhatIsBefore) {
  const at::NoGradGuard no_grad;
  auto model = make(windowed(4));
  const at::Tensor ids = random_ids(2, 16), want = whole(model, ids);
  KvCache cache(*model, 2, 16);
  const auto expect = [&](int64_t tokens) {
    std::vector<at::Tensor> some, wanted;
    for (const int64_t row : {0, 1}) {
      some.push_back(ids[row].narrow(0, cache.tokens(row), tokens));
      wanted.push_back(want[row].narrow(0, cache.tokens(row), tokens));
    }
    EXPECT_LE(apart(model->forward(cache.inputs(at::stack(some))), at::stack(wanted)), 5e-5)
        << cache.tokens(0) << ", " << cache.tokens(1);
  };
  expect(3);
  cache.truncate(0, 1);  // the window has not forgotten any place yet
  cache.truncate(1, 2);
  cache.truncate(1, 1);
  expect(1);
  cache.truncate(1, 1);  // to the number before the last call
  expect(5);
  cache.truncate(0, 2);
  EXPECT_THAT(message_of([&] { cache.truncate(1, 4); }),
              HasSubstr("row 1 of the KvCache has 6 tokens, and layers with a window of 4 have "
                        "forgotten what is before token 4; cut it to 0 and give its text again, "
                        "or to 1, as before its last call"));
  EXPECT_EQ(cache.tokens(1), 6);
  expect(3);
  // truncate() undoes inputs() for a call that was not made, also if it had several tokens.
  (void)cache.inputs(random_ids(2, 5));
  for (const int64_t row : {0, 1}) cache.truncate(row, row == 0 ? 5 : 9);
  expect(4);
  EXPECT_THAT(message_of([&] { cache.truncate(1, 8); }), HasSubstr("or to 9, as before"));
  (void)cache.inputs(random_ids(1, 1), {1});
  (void)cache.inputs(random_ids(1, 1), {1});
  EXPECT_THAT(message_of([&] { model->forward(cache.inputs(random_ids(1, 1), {1})); }),
              HasSubstr("of which the model has been given 13: a call failed or was left out; "
                        "truncate(1, 0)"));
  for (const int64_t row : {0, 1}) cache.truncate(row, 0);
  expect(7);
}

TEST(KvCache, ThePromptsLogitsHaveTheBitsOfAWholeForward) {
  const at::NoGradGuard no_grad;
  for (const TransformerOptions& options : all_options()) {
    // The plain model has no documents, because documents have a mask of their own.
    auto plain = make(TransformerOptions(options).packed(false)), model = make(options);
    const at::Tensor ids = random_ids(3, 7);
    KvCache cache(*model, 3, 12);
    const at::Tensor want = plain->forward(ids);
    EXPECT_THAT(model->forward<at::Tensor>(cache.inputs(ids)), EqualsBitwise(want));
  }
}

// The plain model's logits of the micro-batches of a pipeline, computed one after another.
at::Tensor by_micro_batches(torch::nn::Sequential& model, const Tensors& inputs, int64_t chunks) {
  std::vector<at::Tensor> logits;
  const int64_t rows = inputs[0].size(0), each = (rows + chunks - 1) / chunks;
  for (int64_t row = 0; row < rows; row += each) {
    const int64_t count = std::min(each, rows - row);
    logits.push_back(
        model->forward(Tensors{inputs[0].narrow(0, row, count), inputs[1].narrow(0, row, count)}));
  }
  return at::cat(logits);
}

TEST(KvCache, IsThePlainModelBitForBitInPipelines) {
  const std::vector<std::vector<int64_t>> balances = {
      {7}, {1, 6}, {2, 5}, {4, 3}, {1, 1, 1, 1, 1, 1, 1}, {3, 2, 2}};
  for (const TransformerOptions& options : all_options()) {
    for (const std::vector<int64_t>& balance : balances) {
      for (const int64_t chunks : {1, 2, 5}) {
        SCOPED_TRACE(::testing::Message() << to_text(options.kind()) << ", " << balance.size()
                                          << " stages, " << chunks << " chunks");
        auto plain = make(options);
        // Each operator of the pipeline has as many threads as in the plain model.
        GPipe pipe(make(options), GPipeOptions(balance).chunks(chunks).cpu_threads_per_stage(
                                      at::get_num_threads()));
        KvCache cache(*pipe, 5, 12), expected(*plain, 5, 12);
        for (const int64_t tokens : {4, 1, 2, 1, 1}) {
          const at::NoGradGuard no_grad;
          const at::Tensor ids = random_ids(5, tokens);
          const at::Tensor want = by_micro_batches(plain, expected.inputs(ids), chunks);
          const Tensors inputs = cache.inputs(ids);
          EXPECT_THAT(pipe->forward(inputs)[0], EqualsBitwise(want));
          // An evaluation of the same tokens gives the same outputs.
          const auto result = pipe->evaluate(
              inputs, {}, [](const Tensors& out, const Tensors&) { return out.at(0).sum(); },
              StepOptions().keep_outputs(true));
          EXPECT_THAT(result.outputs.at(0), EqualsBitwise(want));
        }
      }
    }
  }
}

TEST(KvCache, RowsAreTextsOfTheirOwn) {
  const at::NoGradGuard no_grad;
  for (const TransformerOptions& options : all_options()) {
    auto model = make(options);
    const at::Tensor texts[] = {random_ids(1, 9), random_ids(1, 9), random_ids(1, 9)};
    std::vector<at::Tensor> wants;
    for (const at::Tensor& ids : texts) wants.push_back(whole(model, ids)[0]);
    GPipe pipe(model, GPipeOptions({2, 3, 2}).chunks(2));
    KvCache cache(*pipe, 3, 9);
    const auto part = [&](int64_t row, int64_t begin, int64_t tokens) {
      return texts[row].narrow(1, begin, tokens);
    };
    const auto expect = [&](const std::vector<int64_t>& rows, int64_t tokens) {
      std::vector<at::Tensor> ids, want;
      for (const int64_t row : rows) {
        ids.push_back(part(row, cache.tokens(row), tokens));
        want.push_back(wants[row].narrow(0, cache.tokens(row), tokens));
      }
      const at::Tensor logits = pipe->forward(cache.inputs(at::cat(ids), rows))[0];
      EXPECT_LE(apart(logits, at::stack(want)), 5e-5);
    };
    expect({1}, 5);
    expect({2}, 2);
    expect({2, 1}, 1);
    expect({0, 2}, 1);
    expect({1, 0, 2}, 2);
    EXPECT_EQ(cache.tokens(1), 8);
    // Row 1 is read again from its fourth token on, beside other rows. If windows have forgotten
    // the tokens before that, it is read again from its last call on.
    const bool all_places =
        kv_cache_bytes(options, 3, 9) == kv_cache_bytes(without_windows(options), 3, 9);
    cache.truncate(1, all_places ? 3 : 6);
    expect({0, 1, 2}, 1);
    cache.truncate(0, 0);
    expect({0}, 4);
    expect({2, 0, 1}, 2);
    EXPECT_EQ(cache.tokens(2), 9);
  }
}

// Greedy texts behind prompts of different lengths are the same in one batch as each alone.
TEST(KvCache, PromptsOfDifferentLengthsGoTogether) {
  const at::NoGradGuard no_grad;
  std::vector<TransformerOptions> all = all_options();
  TransformerOptions grows = small(TransformerKind::kLlama);
  grows.block().kinds({LayerKind().rotary(
      RotaryOptions().kind(RotaryKind::kDynamic).factor(4).original_positions(4))});
  all.push_back(grows);
  const std::vector<int64_t> lengths = {2, 5, 1, 3};
  constexpr int64_t kNew = 5;
  for (const TransformerOptions& options : all) {
    auto model = make(options);
    const at::Tensor prompts = random_ids(4, 5);
    const auto write = [&](GPipe& pipe, const at::Tensor& ids, const std::vector<int64_t>& own) {
      KvCache cache(*pipe, ids.size(0), 12);
      std::vector<int64_t> rows(own.size());
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
      at::Tensor logits = pipe->forward(cache.inputs(ids, rows, own))[0];
      // The logits of the last token of each row.
      logits = logits.take_along_dim(
          (at::tensor(own, at::kLong) - 1).view({-1, 1, 1}).expand({-1, 1, 23}), 1);
      std::vector<at::Tensor> all_logits = {logits};
      for (int64_t i = 0; i < kNew; ++i) {
        logits = pipe->forward(cache.inputs(logits.argmax(-1)))[0];
        all_logits.push_back(logits);
      }
      for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(cache.tokens(rows[i]), own[i] + kNew);
      return at::cat(all_logits, 1);
    };
    GPipe pipe(model, GPipeOptions({2, 3, 2}).chunks(2));
    const at::Tensor together = write(pipe, prompts, lengths);
    for (int64_t row = 0; row < 4; ++row) {
      const at::Tensor alone =
          write(pipe, prompts.narrow(0, row, 1).narrow(1, 0, lengths[row]), {lengths[row]});
      EXPECT_TRUE(alone.argmax(-1).equal(together.narrow(0, row, 1).argmax(-1))) << row;
      EXPECT_LE(apart(alone, together.narrow(0, row, 1)), 5e-5) << row;
    }
  }
}

TEST(KvCache, LengthsThatAreNoneAreRefused) {
  const at::NoGradGuard no_grad;
  auto model = make(small(TransformerKind::kLlama));
  KvCache cache(*model, 2, 9);
  const at::Tensor ids = random_ids(2, 4);
  EXPECT_THAT(message_of([&] {
                cache.inputs(ids, {0, 1}, {4});
              }),
              HasSubstr("there are 1 lengths for 2 rows"));
  EXPECT_THAT(message_of([&] { cache.inputs(ids, {0, 1}, {4, 0}); }), HasSubstr("from 1 to 4"));
  EXPECT_THAT(message_of([&] { cache.inputs(ids, {0, 1}, {5, 4}); }), HasSubstr("got 5"));
  EXPECT_EQ(cache.tokens(0), 0);
}

class KvCacheWithWindow : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Windows, KvCacheWithWindow, ::testing::Values(0, 3));

TEST_P(KvCacheWithWindow, ANanOfATextThatWasForgottenIsGone) {
  const at::NoGradGuard no_grad;
  auto model = make(windowed(GetParam()));
  const at::Tensor ids = random_ids(1, 6);
  const at::Tensor want = whole(model, ids);
  KvCache cache(*model, 2, 8);
  at::Tensor weight = model->named_parameters()["embedding.tokens.weight"];
  const at::Tensor before = weight.clone();
  weight.fill_(std::numeric_limits<double>::quiet_NaN());
  model->forward(cache.inputs(random_ids(2, 8)));
  weight.copy_(before);
  for (const int64_t row : {0, 1}) cache.truncate(row, 0);
  model->forward(cache.inputs(random_ids(1, 5), {0}));
  model->forward(cache.inputs(ids.narrow(1, 0, 2), {1}));
  // The call sees six places because of the first row. The second row has only three, and must not
  // see what was left in the others.
  const at::Tensor logits = model->forward(cache.inputs(ids.narrow(1, 2, 1).expand({2, 1})));
  EXPECT_LE(apart(logits[1], want[0].narrow(0, 2, 1)), 5e-5);
}

TEST(KvCache, LeavesNothingInTheModel) {
  const at::NoGradGuard no_grad;
  for (const TransformerOptions& options : all_options()) {
    auto model = make(options);
    const at::Tensor ids = random_ids(2, 6);
    const at::Tensor want = whole(model, ids);
    {
      KvCache cache(*model, 2, 12);
      model->forward(cache.inputs(ids));
      EXPECT_EQ(model->named_buffers().size(), 0);
      if (!options.tied()) {
        torch::nn::Sequential clone(
            std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
        EXPECT_THAT(whole(clone, ids), EqualsBitwise(want)) << "a clone has no cache";
      }
    }
    EXPECT_THAT(whole(model, ids), EqualsBitwise(want));
    KvCache another(*model, 1, 3);
    model->forward(another.inputs(random_ids(1, 3)));
  }
}

TEST(KvCache, HoldsWhatIsSaidBeforehand) {
  gpipe::testing::count_live_memory();
  const at::NoGradGuard no_grad;
  for (const TransformerKind kind : kKinds) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      auto model = make(small(kind));
      model->to(type);
      const int64_t before = gpipe::testing::live_bytes();
      {
        KvCache cache(*model, 3, 11);
        EXPECT_EQ(cache.bytes(), 0);
        model->forward(cache.inputs(random_ids(2, 4), {2, 0}));
        const int64_t want = kv_cache_bytes(small(kind), 3, 11, type);
        EXPECT_EQ(cache.bytes(), want);
        EXPECT_EQ(want, 2 * 2 * 3 * 11 * (kind == TransformerKind::kGPT2 ? 16 : 8) *
                            static_cast<int64_t>(c10::elementSize(type)));
        EXPECT_GE(gpipe::testing::live_bytes() - before, want);
      }
      EXPECT_EQ(gpipe::testing::live_bytes(), before);
    }
  }
}

TEST(KvCache, TheModelRefusesWhatItCannotDo) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{7}, {1, 6}, {3, 4}}) {
    GPipe pipe(make(small(TransformerKind::kGPT2)), GPipeOptions(balance).chunks(2));
    const auto loss = [](const Tensors& out, const Tensors&) { return out.at(0).sum(); };
    const at::Tensor ids = random_ids(2, 3);
    KvCache cache(*pipe, 2, 12);
    Tensors inputs = cache.inputs(ids);
    EXPECT_THAT(message_of([&] { pipe->forward(inputs); }), HasSubstr("with gradients enabled"));
    EXPECT_THAT(message_of([&] { pipe->step(inputs, {}, loss); }),
                HasSubstr("with gradients enabled"));
    pipe->train();
    EXPECT_THAT(message_of([&] { pipe->evaluate(inputs, {}, loss); }),
                HasSubstr("in training mode; call eval()"));
    pipe->eval();
    const at::NoGradGuard no_grad;
    const auto refuses = [&](const Tensors& other) {
      EXPECT_THAT(message_of([&] { pipe->forward(other); }),
                  HasSubstr("must be given what KvCache::inputs() gave last"));
    };
    refuses({ids, at::zeros_like(ids)});
    refuses({ids, inputs[1].flip(1)});
    refuses({ids, inputs[1] + 12});
    refuses({ids, inputs[1] - 12});
    refuses({ids.slice(1, 1), inputs[1].slice(1, 1)});
    const at::Tensor logits = pipe->forward(inputs)[0];
    const Tensors next = cache.inputs(ids.slice(1, 0, 1));
    refuses(inputs);  // these were the last inputs() before `next`
    EXPECT_EQ(pipe->forward(next)[0].sizes(), (at::IntArrayRef{2, 1, 23}));
    // After the failed calls, both rows can be emptied and the text be given again.
    for (const int64_t row : {0, 1}) cache.truncate(row, 0);
    EXPECT_THAT(pipe->forward(cache.inputs(ids))[0], EqualsBitwise(logits));
  }
}

TEST(KvCache, TokensThatWereNeverComputedAreNoticed) {
  for (const TransformerOptions& options :
       {small(TransformerKind::kGPT2), small(TransformerKind::kLlama), windowed(3)}) {
    torch::nn::Sequential model = make(options);
    const torch::NoGradGuard no_grad;
    const at::Tensor ids = random_ids(2, 4);
    const at::Tensor expected = whole(model, ids);
    KvCache cache(*model, 2, 8);
    (void)cache.inputs(ids);  // the model is not called with these inputs
    EXPECT_THAT(message_of([&] { model->forward(cache.inputs(random_ids(2, 1))); }),
                HasSubstr("row 0 of the KvCache counts 4 tokens before these, of which the model "
                          "has been given 0: a call failed or was left out; truncate(0, 0)"));
    for (int64_t row = 0; row < 2; ++row) cache.truncate(row, 0);
    const std::vector<at::Tensor> inputs = cache.inputs(ids);
    model->forward(inputs);
    const at::Tensor again = model->forward(inputs);  // the same inputs once more are allowed
    EXPECT_LT(apart(again, expected), 5e-5);
  }
}

TEST(KvCache, MistakesAreNamed) {
  auto model = make(small(TransformerKind::kGPT2));
  KvCache cache(*model, 2, 12);
  const auto says = [](const std::string& part, const std::function<void()>& call) {
    EXPECT_THAT(message_of(call), HasSubstr(part));
  };
  (void)cache.inputs(random_ids(2, 10));
  says("row 0 of the KvCache is full: it has 10 of 12 tokens, and gets 3 more",
       [&] { (void)cache.inputs(random_ids(2, 3)); });
  EXPECT_EQ(cache.tokens(0), 10) << "nothing was taken";
  says("token ids of 3 rows for 2 rows", [&] { (void)cache.inputs(random_ids(3, 1)); });
  says("token ids of 2 rows for 1 rows", [&] { (void)cache.inputs(random_ids(2, 1), {1}); });
  says("whole numbers of 64 or 32 bits, got Float", [&] { (void)cache.inputs(at::ones({2, 1})); });
  says("is larger than any memory", [&] { KvCache(*model, int64_t{1} << 62, 4); });
  says("there is no row 2 in a KvCache of 2 rows",
       [&] { (void)cache.inputs(random_ids(1, 1), {2}); });
  says("row 1 of the KvCache is named twice", [&] {
    (void)cache.inputs(random_ids(2, 1), {1, 1});
  });
  says("of a token or more, got [2, 0]", [&] { (void)cache.inputs(random_ids(2, 0)); });
  says("has 10 tokens, and cannot be cut to 11", [&] { cache.truncate(0, 11); });
  says("there is no row -1", [&] { (void)cache.tokens(-1); });
  says("has a KvCache already", [&] { KvCache(*model, 1, 1); });
  auto other = make(small(TransformerKind::kGPT2));
  says("the model has 12 positions, got a KvCache of 13", [&] { KvCache(*other, 1, 13); });
  says("needs rows and places, got 0 rows of 3", [&] { KvCache(*other, 0, 3); });
  auto plain = make(small(TransformerKind::kGPT2).packed(false));
  says("make it with packed(true)", [&] { KvCache(*plain, 1, 1); });
  torch::nn::Sequential empty;
  says("this one has 0", [&] { KvCache(*empty, 1, 1); });
  // With rotary positions a cache may be longer than max_positions.
  auto llama = make(small(TransformerKind::kLlama));
  const at::NoGradGuard no_grad;
  {
    KvCache longer(*llama, 1, 20);
    llama->forward(longer.inputs(random_ids(1, 20)));
  }
  KvCache typed(*llama, 1, 20);
  llama->forward(typed.inputs(random_ids(1, 2)));
  llama->to(at::kDouble);
  says("has keys and values of Float and Float, and now gets some of Double and Double",
       [&] { llama->forward(typed.inputs(random_ids(1, 1))); });
}

}  // namespace
}  // namespace gpipe::models
