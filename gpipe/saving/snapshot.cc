#include "gpipe/saving/snapshot.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "absl/strings/str_join.h"
#include "gpipe/distributed/meet/addresses.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/tensors/byte_tensor.h"
#include "gpipe/saving/checkpoint_run.h"
#include "gpipe/saving/states_to_come.h"
#include "gpipe/zero_optimizer.h"
#include "safetensors/safetensors.h"

namespace gpipe {
namespace {

using internal::CheckpointImages;
using internal::ModelParts;
using internal::new_bytes;
using internal::Processes;
using internal::tensor_of_bytes;
using nlohmann::json;
using safetensors::Image;

// The greatest message, in bytes. A message of this size does not keep others waiting for long.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

// Collects messages to and from other processes, and then moves all of them.
class Mail {
 public:
  void send(int64_t process, const at::Tensor& bytes) { add(sends_, process, bytes); }
  void receive(int64_t process, const at::Tensor& bytes) { add(receives_, process, bytes); }
  void move(Processes& processes) const { processes.move(sends_, receives_); }

 private:
  static void add(std::vector<Processes::Parcel>& parcels, int64_t process,
                  const at::Tensor& bytes) {
    for (int64_t begin = 0; begin < bytes.numel(); begin += kPieceBytes) {
      const int64_t count = std::min(kPieceBytes, bytes.numel() - begin);
      parcels.push_back({process, bytes.narrow(0, begin, count)});
    }
  }

  std::vector<Processes::Parcel> sends_, receives_;
};

safetensors::File progress_file(const CheckpointImages& images) {
  const std::string name = internal::progress_name();
  return safetensors::File("snapshot/" + name, images.at(name));
}

class MemorySink final : public internal::CheckpointSink {
 public:
  // `to_come`: as bytes_to_come().
  MemorySink(const ModelParts& parts, int64_t to_come, internal::SnapshotArrived arrived)
      : parts_(parts), to_come_(to_come), arrived_(std::move(arrived)) {}

  bool is_in_memory() const override { return true; }
  void begin(const std::vector<std::string>&, bool) override {}

  std::string write(const std::string& name, const internal::Named& tensors,
                    const Metadata& metadata) override {
    images_[name] = safetensors::image_of(tensors, metadata);
    return fingerprints_[name] = internal::fingerprint_of_image(images_[name]);
  }

  // The files that this process sends, with the lengths of header and data; rank 0 adds the state
  // of its generator.
  std::string told(const at::Tensor& generator) const override {
    if (parts_.processes == nullptr) return "";
    json own = {{"host", distributed::host_name()}, {"files", json::object()}, {"to come", 0}};
    for (const auto& [name, image] : images_) {
      if (is_in_each_replica(name)) continue;
      own["files"][name] = {image.header.size(), image.data_bytes};
      if (name.rfind("optimizer", 0) == 0) own["to come"] = to_come_;
    }
    if (parts_.world.rank() == 0) {
      const auto* bytes = generator.const_data_ptr<uint8_t>();
      own["generator"] = json::binary(std::vector<uint8_t>(bytes, bytes + generator.numel()));
    }
    std::string bytes;
    json::to_cbor(own, bytes);
    return bytes;
  }

  void end(const at::Tensor& generator, const Metadata& metadata,
           const std::vector<std::string>& told) override {
    at::Tensor of_rank_0 = generator;
    int64_t to_come = to_come_;
    if (parts_.processes != nullptr) {
      check_own(metadata);
      of_rank_0 = share(told, to_come);
    }
    Metadata all = metadata;
    all[internal::progress_name()] = internal::fingerprint_of_progress(metadata, of_rank_0);
    images_[internal::progress_name()] = safetensors::image_of({{"generator", of_rank_0}}, all);
    Snapshot snapshot(std::move(images_));
    const int64_t planned_bytes = snapshot.bytes() + to_come;
    arrived_(std::move(snapshot), planned_bytes);
  }

 private:
  // Throws unless this process's files have the fingerprints in `metadata`, which are those of the
  // first replica. All replicas must have the same values.
  void check_own(const Metadata& metadata) const {
    for (const auto& [name, own] : fingerprints_) {
      if (own == metadata.at(name)) continue;
      throw std::runtime_error("take_snapshot: " + name + " has " + own + " on rank " +
                               std::to_string(parts_.world.rank()) + ", and " + metadata.at(name) +
                               " in the first replica: the replicas have different values");
    }
  }

  // Sends this rank's files to its partner, and adds the files of the rank whose partner this one
  // is. Adds that rank's bytes to come. Returns the state of the generator of rank 0.
  at::Tensor share(const std::vector<std::string>& told, int64_t& to_come) {
    const int64_t rank = parts_.world.rank();
    const int64_t size = parts_.world.size();
    std::vector<json> all;
    std::vector<std::string> hosts;
    for (const std::string& bytes : told) {
      all.push_back(json::from_cbor(bytes));
      hosts.push_back(all.back().at("host"));
    }
    const int64_t distance = internal::partner_distance(hosts);
    const int64_t partner = (rank + distance) % size;
    const int64_t source = (rank + size - distance) % size;
    Mail mail;
    std::string sent;  // the headers of all files
    for (const auto& [name, lengths] : all.at(static_cast<size_t>(rank)).at("files").items()) {
      const Image& image = images_.at(name);
      sent += image.header;
      mail.send(partner, image.data);
    }
    mail.send(partner, tensor_of_bytes(sent));
    struct Arriving {
      size_t header_bytes;
      at::Tensor data;
    };
    std::map<std::string, Arriving> arriving;
    int64_t header_bytes = 0;
    for (const auto& [name, lengths] : all.at(static_cast<size_t>(source)).at("files").items()) {
      const Arriving file = {lengths.at(0), new_bytes(lengths.at(1))};
      header_bytes += static_cast<int64_t>(file.header_bytes);
      mail.receive(source, file.data);
      arriving.emplace(name, file);
    }
    const at::Tensor headers = new_bytes(header_bytes);
    mail.receive(source, headers);
    mail.move(*parts_.processes);
    const auto* header = static_cast<const char*>(headers.const_data_ptr());
    for (const auto& [name, file] : arriving) {
      images_[name] = {std::string(header, file.header_bytes), file.data.numel(), file.data};
      header += file.header_bytes;
    }
    to_come += all.at(static_cast<size_t>(source)).at("to come").get<int64_t>();
    const json::binary_t& state = all.front().at("generator").get_binary();
    return tensor_of_bytes(std::string(state.begin(), state.end()));
  }

  // Whether each replica has this file, so that no replica needs to send it.
  bool is_in_each_replica(const std::string& name) const {
    return parts_.world.replicas() > 1 &&
           (name == internal::part_name("model", parts_.rank, parts_.size) ||
            name == internal::part_name("optimizer", parts_.rank, parts_.size));
  }

  const ModelParts& parts_;
  const int64_t to_come_;
  const internal::SnapshotArrived arrived_;
  CheckpointImages images_;
  std::map<std::string, std::string> fingerprints_;  // the fingerprints of this process's own files
};

// Brings together, within a call of all processes, what each holds of one snapshot.
class Gathering {
 public:
  // Whether this process needs the data of a file. `holders`: the ranks that hold it.
  using Needs = std::function<bool(const std::string& name, const Image& image,
                                   const std::vector<size_t>& holders)>;

  // `world`: of several processes, or of replicas.
  Gathering(const World& world, const Snapshot& held, Needs needs)
      : world_(world), needs_(std::move(needs)), images_(held.images()) {}

  // All files. Those that this process neither holds nor needs have no data.
  CheckpointImages images() {
    if (world_.processes() != nullptr) {
      find_holders();
      share_headers();
      fetch();
    } else {
      TORCH_CHECK_VALUE(!images_.empty(), "load_snapshot was given an empty snapshot");
    }
    return std::move(images_);
  }

 private:
  std::vector<json> exchange(const std::string& what, const json& own) const {
    std::vector<json> all;
    for (const std::string& text :
         internal::exchange_long(*world_.processes(), "load_snapshot: " + what, own.dump(),
                                 /*is_patient=*/true)) {
      all.push_back(json::parse(text));
    }
    return all;
  }

  void find_holders() {
    const Snapshot own(images_);
    const std::vector<json> all =
        exchange("what each holds", {{"of", own.fingerprint()}, {"files", own.files()}});
    std::string of;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const std::vector<std::string> files = all[rank].at("files");
      if (files.empty()) continue;
      const std::string fingerprint = all[rank].at("of");
      TORCH_CHECK_VALUE(of.empty() || of == fingerprint, "load_snapshot: rank ", rank,
                        " holds a part of another snapshot than a rank before it; give the same "
                        "one on all ranks, and an empty one where it is not held");
      of = fingerprint;
      for (const std::string& name : files) holders_[name].push_back(rank);
    }
    TORCH_CHECK_VALUE(!of.empty(), "load_snapshot: no process holds any part of a snapshot");
  }

  void share_headers() {
    json own = json::object();
    for (const auto& [name, ranks] : holders_) {
      if (static_cast<int64_t>(ranks.front()) != world_.rank()) continue;
      const Image& image = images_.at(name);
      own[name] = {image.header, image.data_bytes};
      if (name != internal::progress_name()) continue;
      const auto* bytes = image.data.const_data_ptr<uint8_t>();
      own[name].push_back(std::vector<uint8_t>(bytes, bytes + image.data.numel()));
    }
    for (const json& files : exchange("the headers", own)) {
      for (const auto& [name, parts] : files.items()) {
        Image& image = images_[name];  // an image that is here with its data stays as it is
        if (image.data.defined()) continue;
        image.header = parts.at(0);
        image.data_bytes = parts.at(1);
        if (name != internal::progress_name()) continue;
        const std::vector<uint8_t> bytes = parts.at(2);
        image.data = new_bytes(image.data_bytes);
        std::memcpy(image.data.mutable_data_ptr(), bytes.data(), bytes.size());
      }
    }
  }

  // The files that this process needs whose data are not here.
  std::set<std::string> needed() const {
    std::set<std::string> files;
    for (const auto& [name, image] : images_) {
      if (name == internal::progress_name() || image.data.defined()) continue;
      if (needs_(name, image, holders_.at(name))) files.insert(name);
    }
    return files;
  }

  void fetch() {
    std::vector<std::string> lost;
    const safetensors::File progress = safetensors::File("snapshot/" + internal::progress_name(),
                                                         images_.at(internal::progress_name()));
    for (const std::string& name : internal::parts_of(progress)) {
      if (holders_.count(name) == 0) lost.push_back(name);
    }
    TORCH_CHECK_VALUE(lost.empty(), "load_snapshot: no process holds ", absl::StrJoin(lost, ", "),
                      ": all processes that held it are lost");
    const auto rank = static_cast<size_t>(world_.rank());
    const std::vector<json> needs = exchange("what each needs", needed());
    Mail mail;
    for (size_t to = 0; to < needs.size(); ++to) {
      for (const std::string name : needs[to]) {
        const std::vector<size_t>& holders = holders_.at(name);
        const size_t from = holders[to % holders.size()];
        Image& image = images_.at(name);
        if (from == rank) mail.send(static_cast<int64_t>(to), image.data);
        if (to != rank) continue;
        image.data = new_bytes(image.data_bytes);
        mail.receive(static_cast<int64_t>(from), image.data);
      }
    }
    mail.move(*world_.processes());
  }

  const World& world_;
  const Needs needs_;
  CheckpointImages images_;
  std::map<std::string, std::vector<size_t>> holders_;  // by file, the ranks that hold it, in order
};

// Says whether a file has tensors of this process's layers, or states of its optimizer.
Gathering::Needs needs_of(const ModelParts& parts, torch::optim::Optimizer& optimizer) {
  std::set<std::string> here;
  for (const auto& [name, tensor] : parts.here(internal::state_of(parts.pipe))) here.insert(name);
  std::set<std::string> with_states = here;
  if (const auto* const zero = dynamic_cast<ZeroOptimizer*>(&optimizer)) {
    // The other replicas have the states of the other parameters.
    std::set<const c10::TensorImpl*> owned;
    for (const at::Tensor& each : zero->owned_parameters())
      owned.insert(each.unsafeGetTensorImpl());
    for (const auto& parameter : parts.pipe->named_parameters()) {
      if (owned.count(parameter.value().unsafeGetTensorImpl()) == 0) {
        with_states.erase(parameter.key());
      }
    }
  }
  return [here = std::move(here), with_states = std::move(with_states)](
             const std::string& name, const Image& image, const std::vector<size_t>&) {
    const safetensors::File file(name, image);
    const auto& tensors = file.header().tensors;
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& each) {
      // The tensor is a parameter ("0.weight") or a state of one ("0.weight/exp_avg").
      const std::string& tensor = each.first;
      const size_t slash = tensor.rfind('/');
      return here.count(tensor) != 0 ||
             (slash != std::string::npos && with_states.count(tensor.substr(0, slash)) != 0);
    });
  };
}

}  // namespace

int64_t Snapshot::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, image] : images_) {
    sum += static_cast<int64_t>(image.header.size() + image.data.nbytes());
  }
  return sum;
}

Progress Snapshot::progress() const {
  TORCH_CHECK_VALUE(!empty(), "an empty snapshot has no progress");
  const safetensors::File file = progress_file(images_);
  return internal::progress_of(file);
}

std::vector<std::string> Snapshot::files() const {
  std::vector<std::string> names;
  for (const auto& [name, image] : images_) names.push_back(name);
  return names;
}

std::vector<std::string> Snapshot::all_files() const {
  if (empty()) return {};
  const safetensors::File file = progress_file(images_);
  return internal::parts_of(file);
}

std::string Snapshot::fingerprint() const {
  if (empty()) return "";
  return internal::metadata_of(progress_file(images_), internal::progress_name());
}

Snapshot take_snapshot(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress) {
  Snapshot taken;
  internal::take_snapshot(pipe, optimizer, progress,
                          [&](Snapshot snapshot, int64_t) { taken = std::move(snapshot); });
  return taken;
}

Progress load_snapshot(GPipe& pipe, torch::optim::Optimizer& optimizer, const Snapshot& held) {
  return internal::load_run("load_snapshot", pipe, optimizer, [&](const ModelParts& parts) {
    return internal::open_images(Gathering(parts.world, held, needs_of(parts, optimizer)).images());
  });
}

namespace internal {

void take_snapshot(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                   const SnapshotArrived& arrived) {
  auto* const zero = dynamic_cast<ZeroOptimizer*>(&optimizer);
  const int64_t to_come = bytes_to_come(zero != nullptr ? zero->local() : optimizer);
  save_run("take_snapshot", pipe, optimizer, progress, [&](const ModelParts& parts) {
    return std::make_unique<MemorySink>(parts, to_come, arrived);
  });
}

Snapshot hand_over(const World& world, const Snapshot& held, int64_t staying) {
  Processes* const processes = world.processes().get();
  const auto stays = static_cast<size_t>(staying);
  return in_call(processes, [&] {
    CheckpointImages images =
        Gathering(world, held,
                  [&](const std::string&, const Image&, const std::vector<size_t>& holders) {
                    const size_t holder = holders.front();
                    return holder >= stays && holder % stays == static_cast<size_t>(world.rank());
                  })
            .images();
    for (auto image = images.begin(); image != images.end();) {
      image = image->second.data.defined() ? std::next(image) : images.erase(image);
    }
    (void)processes->exchange("hand_over: all have arrived", "", /*is_patient=*/true);
    return Snapshot(std::move(images));
  });
}

int64_t partner_distance(const std::vector<std::string>& hosts) {
  for (size_t distance = 1; distance < hosts.size(); ++distance) {
    bool is_elsewhere = true;
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      is_elsewhere = is_elsewhere && hosts[rank] != hosts[(rank + distance) % hosts.size()];
    }
    if (is_elsewhere) return static_cast<int64_t>(distance);
  }
  return 1;
}

}  // namespace internal
}  // namespace gpipe
