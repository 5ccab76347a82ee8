#include "gpipe/internal/replicas/reduction.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "gpipe/internal/backward/tree_sum.h"
#include "gpipe/internal/processes/parcel_way.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/replicas/packing.h"
#include "gpipe/internal/replicas/shards.h"
#include "gpipe/internal/replicas/signatures.h"

namespace gpipe::internal {
namespace {

using Parcel = Processes::Parcel;

// Buckets are so large that the number of messages costs almost nothing, and so small that the
// copies in them take little memory beside the gradients.
constexpr int64_t kBucketBytes = 16 << 20;

std::vector<int64_t> sizes_of(const std::vector<at::Tensor>& parameters) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& parameter : parameters) {
    bytes.push_back(static_cast<int64_t>(parameter.nbytes()));
  }
  return bytes;
}

// The messages between the replicas. Each owner has its parameters in buckets. Round k moves bucket
// k of every owner.
//
// Messages are memory of the current stream, which waits for the messages of a round. So the memory
// of a round is free for the next one, however far the host is ahead of the device.
class Exchange {
 public:
  // The same process of all replicas makes it. `tensors`: [parameter], what the messages are made
  // of; undefined where a replica has no value.
  Exchange(const World& world, const std::vector<at::Tensor>& parameters,
           const std::vector<int64_t>& owners, const std::vector<at::Tensor>& tensors)
      : world_(world), parameters_(parameters) {
    const std::vector<int64_t> bytes = sizes_of(parameters);
    for (int64_t owner = 0; owner < world.replicas(); ++owner) {
      buckets_.push_back(buckets_of(owner, owners, bytes, kBucketBytes));
      rounds_ = std::max(rounds_, buckets_.back().size());
    }
    if (rounds_ == 0) return;
    way_.emplace(ParcelWay::between_replicas(world, device_of(parameters)));
    defined_ = exchange_defined(world, tensors);
    any_defined_.assign(tensors.size(), false);
    for (const std::vector<bool>& here : defined_) {
      for (size_t k = 0; k < here.size(); ++k) any_defined_[k] = any_defined_[k] || here[k];
    }
  }

  size_t rounds() const { return rounds_; }
  // Returns null if the owner has fewer buckets than rounds.
  const Bucket* bucket(int64_t owner, size_t round) const {
    const std::vector<Bucket>& all = buckets_[static_cast<size_t>(owner)];
    return round < all.size() ? &all[round] : nullptr;
  }

  // Adds the messages from each replica to the owners. `tensors`: [parameter]. Calls take(bucket,
  // [replica] messages) for the bucket that this replica owns, if it has one in this round.
  template <typename Take>
  void add_scatter(size_t round, const std::vector<at::Tensor>& tensors, const Take& take) {
    for_each_other([&](int64_t owner) {
      const Bucket* const theirs = bucket(owner, round);
      if (theirs == nullptr) return;
      sends_.push_back(
          {rank_of(owner), Packing(parameters_, *theirs).pack(tensors, way_->device())});
    });
    const Bucket* const own = bucket(world_.replica(), round);
    if (own == nullptr) return;
    const Packing packing(parameters_, *own);
    std::vector<at::Tensor> messages(static_cast<size_t>(world_.replicas()));
    for_each_other([&](int64_t replica) {
      at::Tensor room = room_for(packing);
      receives_.push_back({rank_of(replica), room});
      messages[static_cast<size_t>(replica)] = std::move(room);
    });
    take(*own, std::move(messages));
  }

  // Adds the messages from the owners to each replica. Calls take(bucket, message) for each bucket
  // that another replica owns.
  template <typename Take>
  void add_gather(size_t round, const std::vector<at::Tensor>& tensors, const Take& take) {
    const Bucket* const own = bucket(world_.replica(), round);
    at::Tensor message;
    if (own != nullptr) message = Packing(parameters_, *own).pack(tensors, way_->device());
    for_each_other([&](int64_t replica) {
      if (own != nullptr) sends_.push_back({rank_of(replica), message});
      const Bucket* const theirs = bucket(replica, round);
      if (theirs == nullptr) return;
      at::Tensor room = room_for(Packing(parameters_, *theirs));
      receives_.push_back({rank_of(replica), room});
      take(*theirs, std::move(room));
    });
  }

  void move() {
    if (way_) way_->move(std::exchange(sends_, {}), std::exchange(receives_, {}));
  }

  // What a message of add_scatter() from `replica` has.
  std::vector<at::Tensor> unpack_from(int64_t replica, const Bucket& bucket,
                                      const at::Tensor& message) const {
    return Packing(parameters_, bucket).unpack(message, defined_.at(static_cast<size_t>(replica)));
  }
  // What a message of add_gather() has.
  std::vector<at::Tensor> unpack_sums(const Bucket& bucket, const at::Tensor& message) const {
    return Packing(parameters_, bucket).unpack(message, any_defined_);
  }

 private:
  template <typename Visit>
  void for_each_other(const Visit& visit) const {
    for (int64_t replica = 0; replica < world_.replicas(); ++replica) {
      if (replica != world_.replica()) visit(replica);
    }
  }
  int64_t rank_of(int64_t replica) const { return world_.rank_of(replica, world_.process()); }
  at::Tensor room_for(const Packing& packing) const {
    return at::empty({packing.bytes()}, c10::TensorOptions(c10::kByte).device(way_->device()));
  }

  const World& world_;
  const std::vector<at::Tensor>& parameters_;
  std::vector<std::vector<Bucket>> buckets_;  // [owner][round]
  size_t rounds_ = 0;
  std::optional<ParcelWay> way_;  // no value: there are no messages
  // [replica][parameter] and [parameter], whether there is a value.
  std::vector<std::vector<bool>> defined_;
  std::vector<bool> any_defined_;
  std::vector<Parcel> sends_;
  std::vector<Parcel> receives_;
};

// Returns, by parameter, the replica that adds up its gradients; or kNobody if the parameter is
// frozen. Frozen parameters do not count in the balance of bytes.
std::vector<int64_t> owners_of_sums(const World& world, const std::vector<at::Tensor>& parameters) {
  std::vector<int64_t> bytes = sizes_of(parameters);
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (!parameters[k].requires_grad()) bytes[k] = 0;
  }
  std::vector<int64_t> owners = owners_of(bytes, world.replicas());
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (!parameters[k].requires_grad()) owners[k] = kNobody;
  }
  return owners;
}

// Returns a copy of `value` in memory of its own, laid out as the parameter.
at::Tensor copy_like(const at::Tensor& parameter, const at::Tensor& value) {
  at::Tensor copy = at::empty_like(parameter);
  return copy.copy_(value);
}

struct OwnBucket {
  const Bucket* bucket = nullptr;
  std::vector<at::Tensor> messages;  // [replica]; the message of this replica is undefined
};

}  // namespace

std::vector<int64_t> owners_of(const World& world, const std::vector<at::Tensor>& parameters) {
  // A frozen parameter has no optimizer state. If it counted, a frozen base model would outweigh
  // the states of all adapters.
  std::vector<int64_t> trained = sizes_of(parameters), frozen = trained;
  for (size_t k = 0; k < parameters.size(); ++k) {
    (parameters[k].requires_grad() ? frozen : trained)[k] = 0;
  }
  std::vector<int64_t> owners = owners_of(trained, world.replicas());
  const std::vector<int64_t> of_frozen = owners_of(frozen, world.replicas());
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (!parameters[k].requires_grad()) owners[k] = of_frozen[k];
  }
  return owners;
}

bool sum_over_replicas(const World& world, const std::vector<at::Tensor>& parameters,
                       int64_t groups_each, std::vector<at::Tensor>& sums) {
  const c10::NoGradGuard no_grad;
  // The signatures may differ, because a layer may have registered a parameter in its first
  // forward, which not all replicas run.
  if (!have_same_signature(world, parameters)) return false;
  Exchange exchange(world, parameters, owners_of_sums(world, parameters), sums);
  OwnBucket own;
  std::vector<std::pair<const Bucket*, at::Tensor>> of_others;
  // Each step moves the gradients of one round and the sums of the round before.
  for (size_t step = 0; step <= exchange.rounds(); ++step) {
    own = OwnBucket();
    of_others.clear();
    if (step < exchange.rounds()) {
      exchange.add_scatter(step, sums, [&](const Bucket& bucket, std::vector<at::Tensor> messages) {
        own = {&bucket, std::move(messages)};
      });
    }
    if (step > 0) {
      exchange.add_gather(step - 1, sums, [&](const Bucket& bucket, at::Tensor message) {
        of_others.emplace_back(&bucket, std::move(message));
      });
    }
    exchange.move();
    for (const auto& [bucket, message] : of_others) {
      std::vector<at::Tensor> values = exchange.unpack_sums(*bucket, message);
      for (size_t place = 0; place < bucket->size(); ++place) {
        at::Tensor& sum = sums[(*bucket)[place]];
        sum = values[place].defined() ? copy_like(parameters[(*bucket)[place]], values[place])
                                      : at::Tensor();
      }
    }
    if (own.bucket == nullptr) continue;
    std::vector<TreeSum> trees(own.bucket->size());
    for (int64_t replica = 0; replica < world.replicas(); ++replica) {
      const bool here = replica == world.replica();
      std::vector<at::Tensor> values;
      if (!here) {
        values =
            exchange.unpack_from(replica, *own.bucket, own.messages[static_cast<size_t>(replica)]);
      }
      for (size_t place = 0; place < trees.size(); ++place) {
        at::Tensor& sum = sums[(*own.bucket)[place]];
        trees[place].add(replica * groups_each,
                         here ? std::exchange(sum, at::Tensor()) : std::move(values[place]));
      }
    }
    for (size_t place = 0; place < trees.size(); ++place) {
      const size_t parameter = (*own.bucket)[place];
      at::Tensor sum = trees[place].take();
      // If only one replica had a gradient, the sum may be a view of that replica's message. It is
      // copied, so that the larger message is freed.
      if (sum.defined() && sum.storage().use_count() > 1)
        sum = copy_like(parameters[parameter], sum);
      sums[parameter] = std::move(sum);
    }
  }
  return true;
}

void share_over_replicas(const World& world, const std::vector<at::Tensor>& parameters,
                         const std::vector<int64_t>& owners) {
  const c10::NoGradGuard no_grad;
  Exchange exchange(world, parameters, owners, parameters);
  std::vector<std::pair<const Bucket*, at::Tensor>> of_others;
  for (size_t round = 0; round < exchange.rounds(); ++round) {
    of_others.clear();
    exchange.add_gather(round, parameters, [&](const Bucket& bucket, at::Tensor message) {
      of_others.emplace_back(&bucket, std::move(message));
    });
    exchange.move();
    for (const auto& [bucket, message] : of_others) {
      const std::vector<at::Tensor> values = exchange.unpack_sums(*bucket, message);
      for (size_t place = 0; place < bucket->size(); ++place) {
        at::Tensor parameter = parameters[(*bucket)[place]];
        parameter.copy_(values[place]);
      }
    }
  }
}

}  // namespace gpipe::internal
