#include "gpipe/saving/saving.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/saving/optimizer_record.h"
#include "gpipe/testing/bitwise.h"
#include "safetensors/safetensors.h"

namespace gpipe {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string new_path() {
  static int count = 0;
  return ::testing::TempDir() + "/run" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

torch::nn::Sequential model(int64_t width = 5) {
  return torch::nn::Sequential(torch::nn::Linear(4, width), torch::nn::BatchNorm1d(width),
                               torch::nn::Dropout(0.5), torch::nn::Linear(width, 3));
}

GPipe pipeline(std::vector<int64_t> balance, int64_t width = 5) {
  const auto stages = static_cast<size_t>(balance.size());
  return {model(width), GPipeOptions(std::move(balance))
                            .devices(std::vector<at::Device>(stages, at::kCPU))
                            .cpu_threads_per_stage(1)
                            .chunks(2)};
}

void train(GPipe& pipe, torch::optim::Optimizer& optimizer, int64_t first, int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    optimizer.zero_grad();
    const at::Tensor input = at::linspace(-1, 1 + 0.1 * static_cast<double>(step), 24).view({6, 4});
    const at::Tensor target = at::linspace(0, 1, 18).view({6, 3});
    pipe->step({input}, {target}, [](const Tensors& outputs, const Tensors& targets) {
      return torch::nn::functional::mse_loss(outputs[0], targets[0]);
    });
    optimizer.step();
  }
}

torch::optim::Adam adam(GPipe& pipe) {
  return torch::optim::Adam(pipe->parameters(), torch::optim::AdamOptions(0.05));
}

void expect_same_state(GPipe& reference, GPipe& other) {
  for (const auto& parameter : reference->named_parameters()) {
    EXPECT_THAT(other->named_parameters()[parameter.key()], EqualsBitwise(parameter.value()))
        << parameter.key();
  }
  for (const auto& buffer : reference->named_buffers()) {
    EXPECT_THAT(other->named_buffers()[buffer.key()], EqualsBitwise(buffer.value()))
        << buffer.key();
  }
}

// The resumed run must end with the same bits. The model has dropout, which draws random numbers,
// and batch norm, which has buffers.
TEST(Checkpoint, LetsARunGoOnUnderAnotherBalance) {
  const std::string path = new_path();
  GPipe pipe = pipeline({2, 2});
  auto optimizer = adam(pipe);
  train(pipe, optimizer, 0, 3);
  save_checkpoint(pipe, optimizer, {3, 18, {}}, path);
  train(pipe, optimizer, 3, 6);

  torch::manual_seed(99);
  GPipe resumed = pipeline({1, 2, 1});
  auto resumed_optimizer = adam(resumed);
  const Progress progress = load_checkpoint(resumed, resumed_optimizer, path);
  EXPECT_EQ(progress.step, 3);
  EXPECT_EQ(progress.rows, 18);
  train(resumed, resumed_optimizer, progress.step, 6);
  expect_same_state(pipe, resumed);
}

// The checkpoint was written with another optimizer under another balance. Reading its weights
// leaves the random numbers as they were.
TEST(Checkpoint, ItsWeightsAreReadWithoutAnOptimizer) {
  const std::string path = new_path();
  GPipe pipe = pipeline({2, 2});
  torch::optim::SGD optimizer(pipe->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(pipe, optimizer, 0, 2);
  save_checkpoint(pipe, optimizer, {2, 12, {}}, path);

  GPipe other = pipeline({1, 2, 1});
  torch::manual_seed(3);
  const at::Tensor want = at::rand(5);
  torch::manual_seed(3);
  EXPECT_EQ(load_weights(other, path).rows, 12);
  EXPECT_THAT(at::rand(5), EqualsBitwise(want));
  expect_same_state(pipe, other);

  GPipe wider = pipeline({4}, 6);
  const at::Tensor before = wider->parameters()[0].clone();
  EXPECT_THAT([&] { load_weights(wider, path); },
              ThrowsMessage<c10::ValueError>(HasSubstr("F32 [5, 4]")));
  EXPECT_THAT(wider->parameters()[0], EqualsBitwise(before));
  EXPECT_THAT([&] { load_weights(other, ""); },
              ThrowsMessage<c10::ValueError>(HasSubstr("is empty")));
}

TEST(Checkpoint, ReplacesAnOldOne) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  save_checkpoint(pipe, optimizer, {}, path);
  train(pipe, optimizer, 0, 1);
  save_checkpoint(pipe, optimizer, {1, 6, {}}, path);
  GPipe other = pipeline({4});
  auto other_optimizer = adam(other);
  EXPECT_EQ(load_checkpoint(other, other_optimizer, path).step, 1);
  expect_same_state(pipe, other);
}

TEST(Checkpoint, HasTheNamesOfThePlainModel) {
  const std::string path = new_path();
  GPipe pipe = pipeline({1, 3});
  auto optimizer = adam(pipe);
  train(pipe, optimizer, 0, 1);
  save_checkpoint(pipe, optimizer, {}, path);
  const safetensors::File file(path + "/model.safetensors");
  auto plain = model();
  for (const auto& parameter : plain->named_parameters()) {
    EXPECT_EQ(file.header().tensors.count(parameter.key()), 1) << parameter.key();
  }
  EXPECT_EQ(file.header().tensors.size(), 9);  // 6 parameters, 3 buffers
  const safetensors::File states(path + "/optimizer.safetensors");
  EXPECT_THAT(states.read("3.bias/exp_avg").sizes().vec(), ::testing::ElementsAre(3));
}

// Everything that a checkpoint holds, as bytes.
std::string state_of(GPipe& pipe, const torch::optim::Optimizer& optimizer) {
  std::string state;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const at::Tensor values = tensor.contiguous();
    state += name + " ";
    state.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  };
  internal::ParameterNames names;
  for (const auto& parameter : pipe->named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
    add(parameter.key(), parameter.value());
  }
  for (const auto& buffer : pipe->named_buffers()) add(buffer.key(), buffer.value());
  const internal::OptimizerRecord record = internal::record_of(optimizer, names);
  for (const auto& [name, tensor] : record.tensors) add(name, tensor);
  add("generator", at::detail::getDefaultCPUGenerator().get_state());
  return state + record.text.dump();
}

// A pipeline and its optimizer, which a refused checkpoint must not change.
class Refusal {
 public:
  Refusal() : optimizer_(adam(pipe_)) { train(pipe_, optimizer_, 0, 1); }

  template <typename Error>
  void expect(const std::string& path, const std::string& text) {
    torch::manual_seed(7);
    const std::string before = state_of(pipe_, optimizer_);
    EXPECT_THAT([&] { load_checkpoint(pipe_, optimizer_, path); },
                ThrowsMessage<Error>(HasSubstr(text)));
    EXPECT_TRUE(state_of(pipe_, optimizer_) == before) << "it was changed";
  }

 private:
  GPipe pipe_ = pipeline({2, 2});
  torch::optim::Adam optimizer_;
};

std::string saved(int64_t width = 5) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4}, width);
  auto optimizer = adam(pipe);
  train(pipe, optimizer, 0, 1);
  save_checkpoint(pipe, optimizer, {1, 6, {}}, path);
  return path;
}

TEST(Checkpoint, OfAnotherModelIsRefused) {
  Refusal().expect<c10::ValueError>(saved(6), "F32 [6, 4]");
}

TEST(Checkpoint, OfAnotherOptimizerIsRefused) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4});
  torch::optim::SGD sgd(pipe->parameters(), 0.1);
  save_checkpoint(pipe, sgd, {}, path);
  Refusal().expect<c10::ValueError>(path, "torch::optim::SGD, not of torch::optim::Adam");
}

TEST(Checkpoint, ThatIsNotThereIsRefused) {
  Refusal().expect<std::runtime_error>(
      new_path(), "there is no checkpoint: No such file or directory; give the path");
  Refusal().expect<std::runtime_error>(new_path(), "has_checkpoint(path)");
}

// Names may have characters that would break a line or change a terminal's colors, or bytes that
// are not UTF-8. Messages show them escaped, in one line.
TEST(Checkpoint, MessagesShowWhateverNamesHaveInOneLine) {
  const std::string odd = "a\nb\x1b\xff";
  const std::string shown = "a\\x0ab\\x1b\\xff'";
  const std::string path = new_path() + odd;
  Refusal().expect<std::runtime_error>(path, shown + ": there is no checkpoint");
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  EXPECT_THAT([&] { save_checkpoint(pipe, optimizer, {}, path + "/folder"); },
              ThrowsMessage<std::runtime_error>(HasSubstr(shown + ": No such file")));
  ASSERT_TRUE(std::filesystem::create_directory(path));
  std::ofstream(path + "/" + odd) << "a file";
  EXPECT_THAT([&] { save_checkpoint(pipe, optimizer, {}, path); },
              ThrowsMessage<c10::ValueError>(HasSubstr(shown + " is a folder with '" + shown)));
  // A module whose parameter has the given name.
  struct Named : torch::nn::Module {
    explicit Named(const std::string& name) { register_parameter(name, at::ones(2)); }
    at::Tensor forward(const at::Tensor& x) { return x * parameters()[0]; }
  };
  const auto of = [](const std::string& name) {
    return GPipe(torch::nn::Sequential(std::make_shared<Named>(name)), GPipeOptions({1}));
  };
  GPipe plain = of("w"), other = of("w\nx");
  torch::optim::SGD of_plain(plain->parameters(), 0.1), of_other(other->parameters(), 0.1);
  const std::string good = new_path();
  save_checkpoint(plain, of_plain, {}, good);
  EXPECT_THAT([&] { load_checkpoint(other, of_other, good); },
              ThrowsMessage<c10::ValueError>(HasSubstr("has no '0.w\\x0ax'")));
}

int64_t size_of(const std::string& path) {
  return static_cast<int64_t>(std::filesystem::file_size(path));
}

void flip(const std::string& path, int64_t place) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(place);
  const auto byte = static_cast<char>(file.get());
  file.seekp(place);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(Checkpoint, WithOneOtherByteIsRefused) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string path = saved(), file = path + "/" + name;
    flip(file, size_of(file) - 1);
    Refusal().expect<std::runtime_error>(path, "when it was saved");
  }
  const std::string path = saved(), progress = path + "/progress.safetensors";
  Refusal refusal;
  const int64_t size = size_of(progress);
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  for (int64_t place = 0; place < size; place += place < 700 ? 1 : 499) {
    flip(progress, place);
    EXPECT_THROW(load_checkpoint(pipe, optimizer, path), std::runtime_error) << "byte " << place;
    flip(progress, place);
  }
  flip(progress, size - 1);  // the last byte of the generator's state
  refusal.expect<std::runtime_error>(path, "it is damaged");
}

// A folder with files of two runs is refused.
TEST(Checkpoint, OfFilesThatDoNotBelongTogetherIsRefused) {
  const std::string path = saved(), other = saved();
  ASSERT_EQ(rename((other + "/model.safetensors").c_str(), (path + "/model.safetensors").c_str()),
            0);
  Refusal().expect<std::runtime_error>(path, "when it was saved");
}

TEST(Checkpoint, OfAnotherVersionIsRefused) {
  const std::string path = saved(), progress = path + "/progress.safetensors";
  const at::Tensor generator = safetensors::File(progress).read("generator");
  auto metadata = safetensors::File(progress).header().metadata;
  metadata["format"] = "gpipe checkpoint 2";
  safetensors::write(progress, {{"generator", generator}}, metadata);
  Refusal().expect<std::runtime_error>(path, "it is 'gpipe checkpoint 2', this program reads");
}

TEST(Checkpoint, OfOtherFilesThanFilesIsRefused) {
  const std::string path = saved(), model = path + "/model.safetensors";
  ASSERT_EQ(unlink(model.c_str()), 0);
  ASSERT_EQ(mkfifo(model.c_str(), 0666), 0);  // a reader of a pipe could wait forever
  Refusal().expect<std::runtime_error>(path, "it is not a file");
  Refusal().expect<c10::ValueError>("", "the path of the checkpoint is empty");
}

// An optimizer whose load() calls `at_load`, which may throw.
class Picky : public torch::optim::SGD {
 public:
  using SGD::SGD;
  void load(torch::serialize::InputArchive& archive) override {
    if (at_load) at_load();
    SGD::load(archive);
  }
  std::function<void()> at_load;
};

TEST(Checkpoint, ThatTheOptimizerCannotReadChangesNothing) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4});
  Picky optimizer(pipe->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(pipe, optimizer, 0, 1);
  save_checkpoint(pipe, optimizer, {}, path);
  train(pipe, optimizer, 1, 2);
  const std::string before = state_of(pipe, optimizer);
  optimizer.at_load = [] { TORCH_CHECK(false, "not this one"); };
  EXPECT_THAT([&] { load_checkpoint(pipe, optimizer, path); },
              ThrowsMessage<c10::ValueError>(HasSubstr("not this one")));
  // An OutOfMemoryError is not the file's fault, so load_checkpoint() throws it as it is.
  optimizer.at_load = [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "too large"); };
  EXPECT_THROW(load_checkpoint(pipe, optimizer, path), c10::OutOfMemoryError);
  EXPECT_TRUE(state_of(pipe, optimizer) == before) << "it was changed";
}

// A layer that has tensors and passes its input on.
struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(at::Tensor parameter, at::Tensor buffer = {}) {
    register_parameter("weight", std::move(parameter), /*requires_grad=*/false);
    if (buffer.defined()) register_buffer("buffer", std::move(buffer));
  }
  at::Tensor forward(at::Tensor input) { return input; }
};
TORCH_MODULE(Holder);

GPipe holders(torch::nn::Sequential model) {
  const auto layers = static_cast<int64_t>(model->size());
  return {std::move(model), GPipeOptions({layers}).devices({at::kCPU})};
}

TEST(Checkpoint, HoldsTensorsOfAllKinds) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto make = [&](double value) {
    return holders(torch::nn::Sequential(
        Holder(at::full({2, 3}, value), at::full({}, value, at::kLong)),
        Holder(at::full({2, 3}, value).t(), at::full({1, 3}, value).expand({4, 3})),
        Holder(at::full({0, 3}, value), at::full({3}, value == 1, at::kBool)),
        Holder(at::full({3}, value == 1 ? nan : value, at::kBFloat16),
               at::full({2, 2, 3, 3}, value, at::kHalf).contiguous(at::MemoryFormat::ChannelsLast)),
        Holder(at::full({3}, c10::complex<double>(0, value), at::kComplexFloat),
               at::full({3}, value, at::kByte))));
  };
  const std::string path = new_path();
  GPipe pipe = make(1), other = make(2);
  torch::optim::SGD optimizer(pipe->parameters(), 0.1), other_optimizer(other->parameters(), 0.1);
  save_checkpoint(pipe, optimizer, {}, path);
  load_checkpoint(other, other_optimizer, path);
  expect_same_state(pipe, other);
  EXPECT_EQ(other->named_buffers()["1.buffer"].strides(), at::IntArrayRef({0, 1}));
}

TEST(Checkpoint, SaysWhatItCannotHold) {
  const auto expect = [](const at::Tensor& buffer, const std::string& text) {
    GPipe pipe = holders(torch::nn::Sequential(Holder(at::ones({2}), buffer)));
    torch::optim::SGD optimizer(pipe->parameters(), 0.1);
    EXPECT_THAT([&] { save_checkpoint(pipe, optimizer, {}, new_path()); },
                ThrowsMessage<c10::ValueError>(HasSubstr(text)));
  };
  expect(at::ones({2}, at::kComplexDouble), "tensor '0.buffer'");
  expect(at::eye(2).to_sparse(), "tensor '0.buffer' must be dense");
}

TEST(Checkpoint, IsNotLoadedIntoTensorsWithoutValues) {
  const auto make = [](at::Device device) {
    const torch::nn::Sequential model(Holder(at::ones({2}, at::TensorOptions(device))));
    return GPipe(model, GPipeOptions({1}).devices({device}));
  };
  const std::string path = new_path();
  GPipe pipe = make(at::kCPU), empty = make(at::kMeta);
  torch::optim::SGD optimizer(pipe->parameters(), 0.1), empty_optimizer(empty->parameters(), 0.1);
  save_checkpoint(pipe, optimizer, {}, path);
  EXPECT_THAT([&] { load_checkpoint(empty, empty_optimizer, path); },
              ThrowsMessage<c10::ValueError>(HasSubstr("'0.weight' is on meta")));
}

// A tied tensor has two names, and LibTorch's parameters() lists it twice. The checkpoint has it
// once, under its first name.
TEST(Checkpoint, HasTiedWeightsOnce) {
  const auto make = [](bool tied) {
    const at::Tensor weight = at::linspace(1, 2, 3);
    return holders(torch::nn::Sequential(Holder(weight), Holder(at::linspace(3, 4, 2)),
                                         Holder(tied ? weight : at::linspace(5, 6, 3))));
  };
  const auto sgd = [](GPipe& pipe) {
    return torch::optim::SGD(pipe->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  const std::string path = new_path();
  GPipe pipe = make(true), other = make(true), untied = make(false);
  auto optimizer = sgd(pipe), other_optimizer = sgd(other), untied_optimizer = sgd(untied);
  for (const at::Tensor& parameter : pipe->parameters()) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  optimizer.step();
  save_checkpoint(pipe, optimizer, {}, path);
  EXPECT_EQ(safetensors::File(path + "/model.safetensors").header().tensors.size(), 2);
  load_checkpoint(other, other_optimizer, path);
  EXPECT_TRUE(state_of(pipe, optimizer) == state_of(other, other_optimizer));
  EXPECT_THAT([&] { load_checkpoint(untied, untied_optimizer, path); },
              ThrowsMessage<c10::ValueError>(HasSubstr("has no '2.weight'")));
  // If the checkpoint has two values under the two names, neither of them may be taken for both.
  save_checkpoint(untied, untied_optimizer, {}, path);
  EXPECT_THAT([&] { load_checkpoint(pipe, optimizer, path); },
              ThrowsMessage<c10::ValueError>(HasSubstr("has '2.weight', which the model does")));
}

TEST(Checkpoint, HasTheGeneratorThatItIsGiven) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  torch::manual_seed(5);
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  const at::Tensor drawn = at::rand({3});
  save_checkpoint(pipe, optimizer, {1, 6, state}, path);
  EXPECT_THAT(load_checkpoint(pipe, optimizer, path).generator, EqualsBitwise(state));
  EXPECT_THAT(at::rand({3}), EqualsBitwise(drawn));
  for (const at::Tensor& other : {at::ones({3}), at::zeros_like(state), state.narrow(0, 0, 100)}) {
    EXPECT_THAT(
        [&] {
          save_checkpoint(pipe, optimizer, {1, 6, other}, new_path());
        },
        ThrowsMessage<c10::ValueError>(HasSubstr("progress.generator is not a valid state")));
  }
}

TEST(Checkpoint, SaysHowFarItIsAndWithWhichSettings) {
  const std::string path = new_path();
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  save_checkpoint(pipe, optimizer, {3, 18, state, R"({"seed": 5})", GradScalerState{0.1F, 12}},
                  path);
  for (const Progress& progress : {read_progress(path), load_checkpoint(pipe, optimizer, path)}) {
    EXPECT_EQ(progress.step, 3);
    EXPECT_EQ(progress.rows, 18);
    EXPECT_THAT(progress.generator, EqualsBitwise(state));
    EXPECT_EQ(progress.settings, R"({"seed": 5})");
    ASSERT_TRUE(progress.grad_scaler.has_value());
    EXPECT_EQ(progress.grad_scaler->scale, 0.1F);
    EXPECT_EQ(progress.grad_scaler->growth_steps, 12);
  }
  // A checkpoint without settings, as older versions wrote it, can be read, too.
  save_checkpoint(pipe, optimizer, {4, 24}, path);
  EXPECT_EQ(read_progress(path).step, 4);
  EXPECT_EQ(read_progress(path).settings, "");
  EXPECT_FALSE(read_progress(path).grad_scaler.has_value());

  // read_progress throws what load_checkpoint throws, but does not read the files of the model.
  std::filesystem::remove(path + "/model.safetensors");
  EXPECT_EQ(read_progress(path).step, 4);
  flip(path + "/progress.safetensors", size_of(path + "/progress.safetensors") - 1);
  EXPECT_THAT([&] { read_progress(path); },
              ThrowsMessage<std::runtime_error>(HasSubstr("damaged")));
  EXPECT_THAT([&] { read_progress(new_path()); },
              ThrowsMessage<std::runtime_error>(HasSubstr("No such file")));
  EXPECT_THAT([&] { read_progress(""); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the path of the checkpoint is empty")));
}

// A reader gets the files of one checkpoint, even while a writer replaces the folder again and
// again.
TEST(Checkpoint, IsReadWholeWhileOthersReplaceIt) {
  const auto pipe_of = [](int64_t step) {
    return holders(torch::nn::Sequential(Holder(at::full({3}, step))));
  };
  const std::string path = new_path();
  std::vector<std::string> nexts;
  for (int64_t step = 0; step < 40; ++step) {
    GPipe pipe = pipe_of(step);
    torch::optim::SGD optimizer(pipe->parameters(), 0.1);
    nexts.push_back(step == 0 ? path : new_path());
    save_checkpoint(pipe, optimizer, {step, 0, {}}, nexts.back());
  }
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (size_t next = 1; next < nexts.size(); ++next) {
      EXPECT_EQ(renameat2(AT_FDCWD, nexts[next].c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE),
                0);
      usleep(300);
    }
    done = true;
  });
  GPipe pipe = pipe_of(-1);
  torch::optim::SGD optimizer(pipe->parameters(), 0.1);
  do {
    EXPECT_NO_THROW({
      const int64_t step = load_checkpoint(pipe, optimizer, path).step;
      EXPECT_EQ(pipe->parameters()[0][0].item<int64_t>(), step);
    });
  } while (!done);
  writer.join();
}

// A limit makes writing fail after any number of bytes, as on a full disk. The old checkpoint must
// stay.
TEST(Checkpoint, ThatDoesNotFitLeavesTheOldOne) {
  const std::string path = saved();
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  train(pipe, optimizer, 0, 1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  int failures = 0;
  for (rlim_t most = 0; most < 7000; most += 250) {
    const rlimit limit{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    bool failed = false;
    try {
      save_checkpoint(pipe, optimizer, {2, 12, {}}, path);
    } catch (const std::runtime_error&) {
      failed = true;
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_EQ(load_checkpoint(pipe, optimizer, path).step, failed ? 1 : 2);
    failures += failed ? 1 : 0;
    if (!failed) break;
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_GT(failures, 15);
  EXPECT_LT(failures, 28);
}

// The message of the error that `call` throws; empty if it throws none.
std::string message_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(Checkpoint, ItsPathIsCheckedBeforeATraining) {
  EXPECT_TRUE(check_checkpoint_path(saved()));
  const std::string folder = new_path();
  EXPECT_FALSE(check_checkpoint_path(folder));
  EXPECT_FALSE(std::filesystem::exists(folder)) << "it is written";
  std::filesystem::create_directory(folder);
  EXPECT_TRUE(check_checkpoint_path(folder)) << "an empty one is replaced";
  EXPECT_FALSE(has_checkpoint(folder));
  EXPECT_FALSE(has_checkpoint(folder + "/missing"));
  EXPECT_FALSE(has_checkpoint(""));
  EXPECT_TRUE(has_checkpoint(saved()));
  std::ofstream(folder + "/notes.txt") << "mine";
  // For a path that cannot hold a checkpoint, this function throws what save_checkpoint throws.
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  for (const std::string& path :
       {std::string(), std::string("."), folder, folder + "/notes.txt", new_path() + "/deeper"}) {
    const std::string said = message_of([&] { check_checkpoint_path(path); });
    EXPECT_EQ(said, message_of([&] { save_checkpoint(pipe, optimizer, {1, 6, {}}, path); }));
    EXPECT_NE(said, "") << path;
  }
  EXPECT_THROW(check_checkpoint_path(folder), c10::ValueError);
  EXPECT_THROW(check_checkpoint_path(new_path() + "/deeper"), std::runtime_error);
}

TEST(Checkpoint, ThatCannotBeWrittenLeavesTheOldOne) {
  const std::string path = saved();
  GPipe pipe = pipeline({4});
  auto optimizer = adam(pipe);
  GPipe stranger = pipeline({4});
  auto strange_optimizer = adam(stranger);
  EXPECT_THAT(
      [&] {
        save_checkpoint(pipe, strange_optimizer, {5, 30, {}}, path);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("that the model does not have")));
  EXPECT_THAT(
      [&] {
        save_checkpoint(pipe, optimizer, {-1, 0, {}}, path);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("-1 steps")));
  EXPECT_EQ(load_checkpoint(pipe, optimizer, path).step, 1);
}

// A call from another thread waits until the run of a step has ended, so it neither reads nor
// changes what the step uses.
TEST(Checkpoint, IsWrittenAndReadBetweenRuns) {
  std::atomic<bool> waits{false};  // whether the layer waits for the other thread's call
  std::atomic<bool> is_running{false};
  std::atomic<bool> has_returned{false};
  bool was_interrupted = false;
  const auto wait = [&](at::Tensor x) {
    if (!waits.exchange(false)) return x;
    is_running = true;
    for (int k = 0; k < 200 && !has_returned; ++k) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    was_interrupted = has_returned;
    return x;
  };
  GPipe pipe(torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Functional(wait),
                                   torch::nn::Linear(4, 3)),
             GPipeOptions({1, 2}).devices({at::kCPU, at::kCPU}).cpu_threads_per_stage(1));
  auto optimizer = adam(pipe);
  ZeroOptimizer zero(pipe, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  });
  const std::string path = new_path();
  const std::string zero_path = new_path();
  save_checkpoint(pipe, optimizer, {}, path);
  save_checkpoint(pipe, zero, {}, zero_path);
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"save_checkpoint", [&] { save_checkpoint(pipe, optimizer, {}, path); }},
      {"save_checkpoint, zero", [&] { save_checkpoint(pipe, zero, {}, zero_path); }},
      {"load_checkpoint", [&] { (void)load_checkpoint(pipe, optimizer, path); }},
      {"load_checkpoint, zero", [&] { (void)load_checkpoint(pipe, zero, zero_path); }},
      {"load_weights", [&] { (void)load_weights(pipe, path); }},
      {"ZeroOptimizer::step", [&] { (void)zero.step(); }},
      {"clip_grad_norm_", [&] { (void)pipe->clip_grad_norm_(1); }},
      {"parameter_hash", [&] { (void)pipe->parameter_hash(); }},
      {"graph_use", [&] { (void)pipe->graph_use(); }},
  };
  for (const auto& [name, call] : calls) {
    waits = true;
    is_running = has_returned = was_interrupted = false;
    std::thread thread([&, &call = call] {
      while (!is_running) std::this_thread::yield();
      call();
      has_returned = true;
    });
    train(pipe, optimizer, 0, 1);
    thread.join();
    EXPECT_FALSE(was_interrupted) << name;
  }
}

// The optimizer's step runs within the call of ZeroOptimizer::step(). A call of the pipeline from
// there would wait for that call to end, so it is refused.
TEST(Checkpoint, AnOptimizerThatCallsThePipelineInAZeroOptimizersStepIsRefused) {
  struct Clipping : torch::optim::SGD {
    Clipping(std::vector<at::Tensor> parameters, GPipe pipe)
        : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)), pipe(std::move(pipe)) {}
    at::Tensor step(LossClosure closure = nullptr) override {
      pipe->clip_grad_norm_(1);
      return SGD::step(std::move(closure));
    }
    GPipe pipe;
  };
  GPipe pipe = pipeline({2, 2});
  ZeroOptimizer zero(pipe, [&](std::vector<at::Tensor> parameters) {
    return std::make_unique<Clipping>(std::move(parameters), pipe);
  });
  EXPECT_THAT([&] { zero.step(); },
              ThrowsMessage<std::logic_error>(HasSubstr("would wait for itself")));
  EXPECT_NO_THROW(pipe->clip_grad_norm_(1));
}

}  // namespace
}  // namespace gpipe
