#include "gpipe/internal/backward/local_backward.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/in_place_of_grad.h"
#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/finite.h"
#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::InputBuffer;
using torch::autograd::InputMetadata;
using torch::autograd::Node;
using torch::autograd::variable_list;

const at::Tensor& leaf_of(const Node& node) {
  return static_cast<const AccumulateGrad&>(node).variable;
}

// Takes the results of a node when the engine runs this node alone.
class Collector : public Node {
 public:
  void expect(const InputMetadata& metadata) { input_metadata_.push_back(metadata); }
  variable_list apply(variable_list&& gradients) override {
    collected = std::move(gradients);
    return {};
  }
  std::string name() const override { return "GPipeCollector"; }

  variable_list collected;
};

// Passes a node its inputs. Some may be undefined, which the engine does not accept as roots.
class Feeder : public Node {
 public:
  Feeder(edge_list&& edges, variable_list&& values)
      : Node(std::move(edges)), values_(std::move(values)) {
    add_input_metadata(trigger);
  }
  variable_list apply(variable_list&&) override { return std::move(values_); }
  std::string name() const override { return "GPipeFeeder"; }

  const at::Tensor trigger = at::zeros({1});

 private:
  variable_list values_;
};

// While it lives, the node passes its results to `collector`, in the order of its valid edges.
class DetourScope {
 public:
  DetourScope(Node& node, const std::shared_ptr<Collector>& collector)
      // Not set_next_edges(): it refuses nodes that have parents, because of a numbering that is
      // not used when a whole graph runs.
      : edges_(const_cast<edge_list&>(node.next_edges())), former_(edges_) {
    uint32_t count = 0;
    for (Edge& edge : edges_) {
      if (!edge.is_valid()) continue;
      collector->expect(edge.function->input_metadata(edge.input_nr));
      edge = Edge(collector, count++);
    }
  }
  ~DetourScope() { edges_ = std::move(former_); }
  DetourScope(const DetourScope&) = delete;
  DetourScope& operator=(const DetourScope&) = delete;

 private:
  edge_list& edges_;
  edge_list former_;
};

// Runs the node in the engine, with all its hooks, and returns its results.
variable_list run_in_engine(Node& node, variable_list inputs, bool keep_graph) {
  edge_list edges;
  for (uint32_t k = 0; k < inputs.size(); ++k) edges.emplace_back(node.getptr(), k);
  auto feeder = std::make_shared<Feeder>(std::move(edges), std::move(inputs));
  auto collector = std::make_shared<Collector>();
  {
    DetourScope detour(node, collector);
    Engine::get_default_engine().execute({Edge(feeder, 0)}, {feeder->trigger}, keep_graph,
                                         /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  variable_list outputs(node.next_edges().size());
  size_t next = 0;
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!node.next_edge(k).is_valid()) continue;
    if (next < collector->collected.size()) outputs[k] = std::move(collector->collected[next]);
    ++next;
  }
  return outputs;
}

// Whether `gradient` already is what the node expects, which is the usual case. Then it need not go
// through validate_outputs, which is slow at finding that out.
bool fits(const InputMetadata& expected, const at::Tensor& gradient) {
  if (expected.was_default_constructed() || expected.is_nested_tensor() ||
      expected.is_tensor_subclass() || expected.layout() != c10::kStrided ||
      gradient.layout() != c10::kStrided || gradient.is_nested() ||
      gradient.scalar_type() != expected.dtype().toScalarType() ||
      expected.grad_dtype() != gradient.scalar_type() || gradient.device() != expected.device() ||
      gradient.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return false;
  }
  const c10::SymIntArrayRef shape = expected.shape_as_dim_vector();
  const c10::IntArrayRef sizes = gradient.sizes();
  return shape.size() == sizes.size() && std::equal(sizes.begin(), sizes.end(), shape.begin(),
                                                    [](int64_t have, const c10::SymInt& want) {
                                                      const std::optional<int64_t> number =
                                                          want.maybe_as_int();
                                                      return number && *number == have;
                                                    });
}

// Checks gradients on their way along `edges`, and converts them to the expected form.
void validate(const edge_list& edges, variable_list& gradients, const Node* from) {
  bool all_fit = edges.size() == gradients.size();
  for (size_t i = 0; all_fit && i < edges.size(); ++i) {
    if (!edges[i].is_valid() || !gradients[i].defined()) continue;
    all_fit = fits(edges[i].function->input_metadata(edges[i].input_nr), gradients[i]);
  }
  if (all_fit) return;
  torch::autograd::validate_outputs(edges, gradients, [from](const std::string& message) {
    return from == nullptr ? message
                           : c10::str("Function ", from->name(), " returned an ", message);
  });
}

// While it lives, the stream on which an accelerator's node computed in the forward is current, as
// in autograd. Usually that is the stage's own stream, and nothing happens. If it is another one
// (of a layer with streams of its own), it waits for the stage's stream, and afterwards the stage's
// stream waits for it.
class NodeStreamScope {
 public:
  NodeStreamScope(Node& node, const variable_list& inputs) {
    const c10::Device device = node.device();
    if (device.is_cpu()) return;
    const std::optional<c10::Stream> stream = node.stream();
    if (!stream) return;
    here_ = current_stream(device);
    if (*stream == *here_) {
      here_.reset();
      if (c10::impl::VirtualGuardImpl(device.type()).getDevice() != device) scope_.emplace(*stream);
      return;
    }
    follow(*stream, *here_);
    for (const at::Tensor& input : inputs) use_on(input, *stream);
    scope_.emplace(*stream);
  }

  // Called when the node is done.
  void leave(const variable_list& outputs) {
    if (here_) {
      follow(*here_, current_stream(here_->device()));
      for (const at::Tensor& output : outputs) use_on(output, *here_);
    }
    scope_.reset();
  }

 private:
  std::optional<c10::Stream> here_;
  std::optional<StreamScope> scope_;
};

// While it lives, the node has these edges instead of its own. There must be as many.
class EdgesScope {
 public:
  EdgesScope(Node& node, edge_list edges)
      : edges_(const_cast<edge_list&>(node.next_edges())), former_(std::move(edges)) {
    std::swap(edges_, former_);
  }
  ~EdgesScope() { std::swap(edges_, former_); }
  EdgesScope(const EdgesScope&) = delete;
  EdgesScope& operator=(const EdgesScope&) = delete;

 private:
  edge_list& edges_;
  edge_list former_;
};

// A node's place in the engine's order. Of the nodes that are ready, the engine runs the one that
// was made last in the forward; those from outside run after all others.
struct Order {
  bool foreign = false;
  uint64_t number = 0;  // higher ones first
  // Among equal numbers: lower positions first, then the node that was made later.
  size_t position = 0;
  uint64_t sequence_nr = 0;
};

bool runs_before(const Order& a, const Order& b) {
  if (a.foreign != b.foreign) return b.foreign;
  if (a.number != b.number) return a.number > b.number;
  if (a.position != b.position) return a.position < b.position;
  return a.sequence_nr > b.sequence_nr;
}

// What one node leaves to the second half of a backward.
struct HeldBack {
  std::optional<Order> order;  // of the node in the second half; none: these are roots
  // A product that is to run again for these edges; null: it has run for all edges.
  std::shared_ptr<Node> product;
  edge_list edges;          // as many as the node has; invalid if not held back
  variable_list gradients;  // the product's inputs, or the gradients for the edges
};

// Where a gradient's values are: for a sparse one, those of its elements.
at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == c10::kSparse ? gradient._values() : gradient;
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor values_a = values_of(a);
  const at::Tensor values_b = values_of(b);
  const c10::StorageImpl* storage = storage_of(values_a);
  return storage == nullptr ? values_a.is_same(values_b) : storage == storage_of(values_b);
}

// Whether anybody else has the gradient's memory. The tensor that it is a view of does not count if
// nobody else has that and the view is all of it: the gradient of a linear layer's weight is a
// transposed product. A part, repeated elements or a lazy conjugate would stay what they are.
bool shares_memory(const at::Tensor& gradient) {
  if (!shares_storage(gradient)) return false;
  const bool whole = gradient.is_non_overlapping_and_dense() && !gradient.is_conj() &&
                     !gradient.is_neg() && gradient.nbytes() == gradient.storage().nbytes();
  return !whole || held_by_others({&gradient});
}

// Whether there is another reference to the gradient or to its memory.
bool is_shared(const at::Tensor& gradient) {
  return gradient.use_count() > 1 || shares_memory(gradient);
}

// Calls visit() for each group of gradients that share memory with each other.
template <typename Visit>
void for_each_memory(c10::SmallVector<at::Tensor*, 16> gradients, const Visit& visit) {
  while (!gradients.empty()) {
    at::Tensor* const first = gradients.front();
    const auto rest = std::stable_partition(
        gradients.begin(), gradients.end(),
        [&](const at::Tensor* other) { return share_memory(*first, *other); });
    visit(c10::ArrayRef<at::Tensor*>(gradients.begin(), rest));
    gradients.erase(gradients.begin(), rest);
  }
}

// Gives these gradients, which share memory, other memory, which they share.
void move_away(c10::ArrayRef<at::Tensor*> gradients) {
  c10::NoGradGuard no_grad;
  if (std::all_of(gradients.begin(), gradients.end(),
                  [](const at::Tensor* gradient) { return storage_of(*gradient) != nullptr; })) {
    return move_into_copy(gradients);
  }
  for (at::Tensor* gradient : gradients) *gradient = gradient->clone();
}

// Whether anybody but these gradients, which share memory, has it.
bool shared_with_others(c10::ArrayRef<at::Tensor*> gradients) {
  const at::Tensor& first = *gradients.front();
  if (storage_of(first) != nullptr) {
    return held_by_others({const_cast<const at::Tensor**>(gradients.data()), gradients.size()});
  }
  if (gradients.size() > 1 || first.use_count() > 1) return true;
  if (first.layout() != c10::kSparse) return false;
  const at::Tensor values = first._values();  // one more reference
  return values.use_count() > 2 || shares_storage(values);
}

std::atomic<bool> checks_held_gradients{false};

class LocalBackward {
 public:
  using HeldBacks = std::vector<HeldBack>;
  struct Held {
    HeldBacks entries;
    // For nodes with user code, see before_users_code.
    absl::flat_hash_map<const Node*, uint64_t> next_made;
    variable_list copies;  // of the gradients, if they are checked

    // Calls visit() for the gradients of each memory that others may have, too.
    template <typename Visit>
    void for_each_shared(const Visit& visit) {
      c10::SmallVector<at::Tensor*, 16> maybe;
      for (HeldBack& entry : entries) {
        for (at::Tensor& gradient : entry.gradients) {
          if (!gradient.defined()) continue;
          const bool alone = gradient.use_count() == 1 && storage_of(gradient) != nullptr &&
                             gradient.storage().use_count() == 1;
          if (!alone) maybe.push_back(&gradient);
        }
      }
      for_each_memory(std::move(maybe), [&](c10::ArrayRef<at::Tensor*> gradients) {
        if (shared_with_others(gradients)) visit(gradients);
      });
    }

    // Called at the end of the first half.
    void take_possession() {
      for_each_shared(move_away);
      if (checks_held_gradients) copies = copies_of_gradients();
    }

    // Called at the begin of the second half.
    void check() {
      if (copies.empty()) return;
      for_each_shared([](c10::ArrayRef<at::Tensor*>) {
        TORCH_INTERNAL_ASSERT(false, "somebody shares the memory of a gradient that was held");
      });
      const variable_list now = copies_of_gradients();
      for (size_t k = 0; k < copies.size(); ++k) {
        TORCH_INTERNAL_ASSERT(at::allclose(now[k], copies[k], 0, 0, /*equal_nan=*/true),
                              "a gradient was changed while it was held");
      }
      copies.clear();
    }

    variable_list copies_of_gradients() const {
      variable_list result;
      for (const HeldBack& entry : entries) {
        for (const at::Tensor& gradient : entry.gradients) {
          if (gradient.defined()) result.push_back(values_of(gradient).detach().clone());
        }
      }
      return result;
    }
  };

  explicit LocalBackward(const LocalBackwardOptions& options)
      : options_(options), anomaly_(torch::autograd::AnomalyMode::is_enabled()) {
    waiting_.reserve(kUsualNodes);
    ready_.reserve(kUsualNodes / 2);
  }

  // Counts how many gradients each node waits for.
  void discover(const edge_list& roots) {
    NodeList found;
    for (const Edge& root : roots) count(root, kNone, found);
    discover_behind(found);
  }

  // The same for a second half.
  void discover(const HeldBacks& held) {
    NodeList found;
    for (const HeldBack& entry : held) {
      for (const Edge& edge : entry.edges) {
        const bool own = entry.order && !entry.order->foreign;
        if (edge.is_valid()) count(edge, own ? entry.order->sequence_nr : kNone, found);
      }
    }
    discover_behind(found);
  }

  void run(const edge_list& roots, variable_list& gradients) {
    c10::AutoGradMode no_grad(false);
    validate(roots, gradients, nullptr);
    deliver(roots, gradients, nullptr);
    run_ready();
  }

  // The first half: what the sinks and other stages' leaves wait for. Leaves the second half in
  // *held.
  void run_urgent(const edge_list& roots, variable_list& gradients, Held* held) {
    mark_urgent(roots);
    for (const auto& [node, waiting] : waiting_) {
      if (waiting.urgent || waiting.leaf || !waiting.users_code) continue;
      held->next_made.emplace(node, next_made_after(*node));
    }
    held_ = held;
    run(roots, gradients);
    held->take_possession();
  }

  // The second half.
  void run(Held& held) {
    c10::AutoGradMode no_grad(false);
    held.check();
    next_made_ = &held.next_made;
    for (HeldBack& entry : held.entries) {
      if (!entry.order) {
        deliver(entry.edges, entry.gradients, nullptr);
      } else {
        push({*entry.order, entry.order->number, nullptr, false, false, {}, &entry});
      }
    }
    run_ready();
  }

 private:
  // A cell of one layer has about six nodes.
  static constexpr size_t kUsualNodes = 12;
  using NodeList = c10::SmallVector<Node*, kUsualNodes>;
  static constexpr uint64_t kNone = LocalBackwardOptions::Progress::kNone;

  struct Waiting {
    int gradients = 0;  // that have not arrived yet
    bool leaf = false;
    bool users_code = false;
    bool foreign = false;
    bool urgent = false;        // see run_urgent()
    uint64_t from = kNone;      // of a foreign node: as in Progress::node when it was found
    at::Tensor* sum = nullptr;  // of a leaf whose gradient is not accumulated here
    at::Tensor* in_place_of_grad = nullptr;  // of another leaf; null: its .grad
    std::optional<InputBuffer> inputs;
  };
  struct Ready {
    Order order;
    // The lowest sequence number on the way to here, which decides when the engine comes to the
    // node. Usually that is the node's own. But the graph of a view that was changed in place is
    // made anew, later than the nodes in front of it.
    uint64_t reached;
    Node* node;
    bool leaf;
    bool users_code;
    variable_list inputs;
    HeldBack* held = nullptr;  // if not null, replaces node and inputs
  };

  static bool runs_later(const Ready& a, const Ready& b) { return runs_before(b.order, a.order); }

  void discover_behind(NodeList& found) {
    while (!found.empty()) {
      Node* node = found.back();
      found.pop_back();
      if (node->next_edges().empty()) continue;
      const uint64_t from =
          is_foreign(*node) ? waiting_.find(node)->second.from : node->sequence_nr();
      for (const Edge& edge : node->next_edges()) {
        if (edge.is_valid()) count(edge, from, found);
      }
    }
    if (options_.progress != nullptr) *options_.progress = {/*found=*/true, kNone};
  }

  Waiting& waiting_at(const Edge& edge) {
    const auto found = waiting_.find(edge.function.get());
    TORCH_INTERNAL_ASSERT(found != waiting_.end());
    return found->second;
  }

  // Marks the nodes that lead to a sink, or to a leaf whose gradient others wait for; and those
  // that lead to users' code that may write into memory which such nodes share.
  void mark_urgent(const edge_list& roots) {
    std::vector<std::pair<Order, Node*>> nodes;  // sorted so that one pass usually is enough
    bool any = false;
    for (auto& [node, waiting] : waiting_) {
      if (kind_of(*node) == NodeKind::kSink || waiting.sum != nullptr) {
        waiting.urgent = any = true;
      } else if (!waiting.leaf) {
        nodes.emplace_back(Order{waiting.foreign, node->sequence_nr()}, node);
      }
    }
    if (any && has_writers_) mark_writers(roots);
    std::sort(nodes.begin(), nodes.end(),
              [](const auto& a, const auto& b) { return runs_before(b.first, a.first); });
    for (bool again = true; again;) {
      again = false;
      for (const auto& entry : nodes) {
        Waiting& waiting = waiting_.find(entry.second)->second;
        if (waiting.urgent) continue;
        const edge_list& edges = entry.second->next_edges();
        waiting.urgent = std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
          return edge.is_valid() && waiting_at(edge).urgent;
        });
        again = again || waiting.urgent;
      }
    }
  }

  // Marks users' code whose gradient other nodes may share: what it is reached through does not
  // compute anew.
  void mark_writers(const edge_list& roots) {
    absl::flat_hash_set<const Node*> seen;
    NodeList found;
    auto reach = [&](const edge_list& edges) {
      for (const Edge& edge : edges) {
        if (!edge.is_valid()) continue;
        Node* node = edge.function.get();
        Waiting& waiting = waiting_at(edge);
        if (waiting.leaf || !seen.insert(node).second) continue;
        const bool writer = may_write(*node);
        waiting.urgent = waiting.urgent || writer;
        if (writer || !computes_anew(*node)) found.push_back(node);
      }
    };
    reach(roots);
    while (!found.empty()) {
      Node* node = found.back();
      found.pop_back();
      reach(node->next_edges());
    }
  }

  // Called before users' code gets these gradients. What is held in their memory sees what users'
  // code writes only if it would in the whole backward, that is if it waits in its buffer alone.
  // Otherwise it has been used, or added to something else, and gets other memory.
  void keep_from_writer(const Order& writer, const variable_list& inputs) {
    c10::SmallVector<at::Tensor*, 16> used;
    std::optional<Arrived> arrived;
    for (HeldBack& entry : held_->entries) {
      for (size_t i = 0; i < entry.gradients.size(); ++i) {
        at::Tensor& gradient = entry.gradients[i];
        if (!gradient.defined()) continue;
        const bool given = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
          return input.defined() && share_memory(gradient, input);
        });
        if (!given) continue;
        if (!arrived) arrived = arrived_before(writer);
        if (entry.product == nullptr && arrived->waits_alone(entry.edges[i])) continue;
        used.push_back(&gradient);
      }
    }
    for_each_memory(std::move(used), move_away);
  }

  // What the whole backward would have done of the second half's part before a node.
  struct Arrived {
    absl::flat_hash_set<const Node*> run;
    absl::flat_hash_map<const Node*, int> gradients;
    absl::flat_hash_map<std::pair<const Node*, uint32_t>, int> terms;

    bool waits_alone(const Edge& edge) const {
      return !run.contains(edge.function.get()) &&
             terms.at({edge.function.get(), edge.input_nr}) == 1;
    }
  };

  Arrived arrived_before(const Order& order) {
    Arrived result;
    NodeList found;
    auto arrive = [&](const edge_list& edges) {
      for (const Edge& edge : edges) {
        if (!edge.is_valid()) continue;
        Node* node = edge.function.get();
        const Waiting& waiting = waiting_at(edge);
        ++result.terms[{node, edge.input_nr}];
        if (++result.gradients[node] < waiting.gradients) continue;
        const uint64_t number = node->sequence_nr();
        if (!waiting.leaf && !runs_before({waiting.foreign, number, 0, number}, order)) continue;
        result.run.insert(node);
        found.push_back(node);
      }
    };
    for (const HeldBack& entry : held_->entries) arrive(entry.edges);
    while (!found.empty()) {
      Node* node = found.back();
      found.pop_back();
      arrive(node->next_edges());
    }
    return result;
  }

  void run_ready() {
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), runs_later);
      Ready next = std::move(ready_.back());
      ready_.pop_back();
      if (next.held == nullptr) {
        evaluate(next, std::move(next.inputs));
      } else if (next.held->product == nullptr) {
        deliver(next.held->edges, next.held->gradients, &next);
      } else {
        const std::shared_ptr<Node> node = std::move(next.held->product);
        EdgesScope rest(*node, next.held->edges);
        evaluate({next.order, next.reached, node.get(), false, false, {}},
                 std::move(next.held->gradients));
      }
    }
    for (Node* leaf : fresh_leaves_) unshare(sum_in(*leaf, waiting_.find(leaf)->second));
  }

  // Where a leaf accumulates.
  static at::Tensor& sum_in(const Node& leaf, const Waiting& waiting) {
    return waiting.in_place_of_grad != nullptr ? *waiting.in_place_of_grad
                                               : leaf_of(leaf).mutable_grad();
  }

  bool is_foreign(const Node& node) const {
    return options_.own &&
           (node.thread_id() != options_.own->thread || node.sequence_nr() < options_.own->begin);
  }

  uint64_t next_made(const Node& node) const {
    if (next_made_ == nullptr) return next_made_after(node);
    const auto known = next_made_->find(&node);
    return known == next_made_->end() ? next_made_after(node) : known->second;
  }

  uint64_t next_made_after(const Node& earlier) const {
    uint64_t next = std::numeric_limits<uint64_t>::max();
    for (const auto& [node, waiting] : waiting_) {
      const bool later = node->sequence_nr() > earlier.sequence_nr();
      if (later && !waiting.foreign) next = std::min(next, node->sequence_nr());
    }
    return next;
  }

  // `from`: as Progress::node.
  void count(const Edge& edge, uint64_t from, NodeList& found) {
    Node& node = *edge.function;
    const auto [entry, fresh] = waiting_.try_emplace(&node);
    Waiting& waiting = entry->second;
    ++waiting.gradients;
    if (!fresh) return;
    waiting.from = from;
    if (options_.progress != nullptr) options_.progress->node = from;
    found.push_back(&node);
    const NodeKind kind = kind_of(node);
    if (kind == NodeKind::kSink) {
      const auto& known = options_.sinks;
      TORCH_CHECK(
          std::find(known.begin(), known.end(), &node) != known.end(),
          "backward reached a tensor of another partition, or of another micro-batch, that came "
          "here by a way that the pipeline does not see (a member of a layer, say, or a global "
          "variable); hand it on as one of the values between layers, stash and pop it "
          "(skip/skippable.h), or detach() it");
      waiting.users_code = has_hooks(node);
      has_writers_ = has_writers_ || may_write(node);
      return;
    }
    waiting.leaf = kind == NodeKind::kLeaf;
    waiting.foreign = !waiting.leaf && is_foreign(node);
    if (waiting.foreign && options_.enter_foreign) options_.enter_foreign(node);
    const bool users_code = kind == NodeKind::kOther || has_hooks(node);
    waiting.users_code = anomaly_ || users_code;
    if (!waiting.leaf) {
      has_writers_ = has_writers_ || users_code || !node.pre_hooks().empty();
      return;
    }
    if (options_.sum_of) waiting.sum = options_.sum_of(edge.function, leaf_of(node));
    if (waiting.sum != nullptr) return;
    if (options_.in_place_of_grad) {
      waiting.in_place_of_grad = options_.in_place_of_grad(edge.function, leaf_of(node));
    }
    if (!sum_in(node, waiting).defined()) fresh_leaves_.push_back(&node);
  }

  // Of these edges, those to nodes that are not urgent; the others are invalid. Empty if there are
  // none.
  edge_list not_urgent(const edge_list& edges) {
    edge_list rest;
    for (size_t i = 0; i < edges.size(); ++i) {
      if (!edges[i].is_valid() || waiting_at(edges[i]).urgent) continue;
      rest.resize(edges.size());
      rest[i] = edges[i];
    }
    return rest;
  }

  // `from`: the node that has run; null for the roots.
  void deliver(const edge_list& edges, variable_list& gradients, const Ready* from) {
    if (held_ != nullptr) {
      edge_list rest = not_urgent(edges);
      if (!rest.empty()) {
        variable_list waiting(gradients.size());
        for (size_t i = 0; i < gradients.size(); ++i) {
          if (rest[i].is_valid()) waiting[i] = std::move(gradients[i]);
        }
        held_->entries.push_back(
            {order_of_rest(from), nullptr, std::move(rest), std::move(waiting)});
      }
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!edges[i].is_valid()) continue;
      Node* node = edges[i].function.get();
      Waiting& waiting = waiting_at(edges[i]);
      if (held_ != nullptr && !waiting.urgent) continue;
      if (waiting.sum != nullptr) {
        if (waiting.sum != LocalBackwardOptions::discarded()) {
          add_to(*waiting.sum, std::move(gradients[i]), node);
        }
        continue;
      }
      if (!waiting.inputs && waiting.gradients == 1 && node->num_inputs() == 1) {
        variable_list only(1);
        only[0] = std::move(gradients[i]);
        make_ready(node, waiting, std::move(only), from);
        continue;
      }
      if (!waiting.inputs) waiting.inputs.emplace(node->num_inputs());
      add(*waiting.inputs, edges[i].input_nr, std::move(gradients[i]), node);
      if (--waiting.gradients > 0) continue;
      make_ready(node, waiting, std::move(waiting.inputs->buffer), from);
      waiting.inputs.reset();
    }
  }

  void make_ready(Node* node, const Waiting& waiting, variable_list inputs, const Ready* from) {
    const uint64_t own = node->sequence_nr();
    const bool follows = from != nullptr && from->order.foreign == waiting.foreign;
    const uint64_t reached = follows ? std::min(own, from->reached) : own;
    // In a second half, what was held back is ready at once. The numbers tell which node would have
    // been ready when.
    const Order order = next_made_ == nullptr ? Order{waiting.foreign, own, 0, own}
                                              : Order{waiting.foreign, waiting.leaf ? own : reached,
                                                      follows ? from->order.position : 0, own};
    push({order, reached, node, waiting.leaf, waiting.users_code, std::move(inputs)});
  }

  // The order of what a node leaves to the second half.
  std::optional<Order> order_of_rest(const Ready* node) const {
    if (node == nullptr) return std::nullopt;
    return Order{node->order.foreign, node->reached, held_->entries.size(),
                 node->order.sequence_nr};
  }

  void push(Ready ready) {
    ready_.push_back(std::move(ready));
    std::push_heap(ready_.begin(), ready_.end(), runs_later);
  }

  // Adds up as a node's input buffer does.
  static void add_to(at::Tensor& sum, at::Tensor term, Node* node) {
    InputBuffer buffer(1);
    add(buffer, 0, std::move(sum),
        node);  // not put there: the buffer notes the stream of the first
    add(buffer, 0, std::move(term), node);
    sum = std::move(buffer.buffer[0]);
  }

  // On the current stream, on which all gradients are once their node is done.
  static void add(InputBuffer& buffer, size_t place, at::Tensor term, Node* node) {
    std::optional<c10::Stream> here;
    if (term.defined() && !term.device().is_cpu()) here = current_stream(term.device());
    // On meta the buffer takes every tensor for one whose in-place addition may do anything, and
    // makes a new one for the sum. On a device with values it adds in place where nobody else has
    // the first term.
    at::Tensor& first = buffer.buffer[place];
    if (term.defined() && term.is_meta() && first.defined() && !c10::GradMode::is_enabled() &&
        first.use_count() == 1 && first.has_storage() && first.storage().use_count() == 1 &&
        first.is_non_overlapping_and_dense() && first.sizes() == term.sizes() &&
        first.scalar_type() == term.scalar_type()) {
      first.add_(term);
      return;
    }
    buffer.add(place, std::move(term), here, here, node);
  }

  void evaluate(const Ready& ready, variable_list inputs) {
    Node& node = *ready.node;
    // Accumulators have no place in the order of nodes.
    if (options_.progress != nullptr && !ready.leaf) options_.progress->node = node.sequence_nr();
    std::optional<InPlaceOfGradScope> in_place_of_grad;
    if (ready.leaf) {
      at::Tensor* const sum =
          options_.in_place_of_grad ? waiting_.find(&node)->second.in_place_of_grad : nullptr;
      const bool first = sum != nullptr ? !sum->defined() : !leaf_of(node).grad().defined();
      if ((first && shares_memory(inputs[0])) || (ready.users_code && is_shared(inputs[0]))) {
        inputs[0] = inputs[0].clone();
      }
      if (sum != nullptr) in_place_of_grad.emplace(leaf_of(node), *sum);
    }
    if (held_ != nullptr && has_writers_ && may_write(node)) keep_from_writer(ready.order, inputs);
    std::optional<EdgesScope> urgent;
    bool keep = options_.keep_graph;
    if (held_ != nullptr && !ready.users_code && node.pre_hooks().empty() && is_product(node)) {
      edge_list rest = not_urgent(node.next_edges());
      if (!rest.empty()) {
        edge_list edges = node.next_edges();
        for (size_t i = 0; i < edges.size(); ++i) {
          if (rest[i].is_valid()) edges[i] = Edge();
        }
        held_->entries.push_back({order_of_rest(&ready), node.getptr(), std::move(rest), inputs});
        urgent.emplace(node, std::move(edges));
        keep = true;
      }
    }
    NodeStreamScope stream(node, inputs);
    variable_list outputs;
    if (ready.users_code) {
      if (options_.before_users_code) options_.before_users_code(node, next_made(node));
      outputs = run_in_engine(node, std::move(inputs), keep);
    } else {
      RECORD_FUNCTION(c10::str("autograd::engine::evaluate_function: ", node.name()),
                      c10::ArrayRef<const c10::IValue>());
      for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
      if (!keep) node.will_release_variables();
      outputs = node(std::move(inputs));
      validate(node.next_edges(), outputs, &node);
      if (!keep) node.release_variables();
    }
    stream.leave(outputs);
    if (options_.check_finite) {
      for (const at::Tensor& output : outputs) check_finite(output, "a gradient of " + node.name());
    }
    deliver(node.next_edges(), outputs, &ready);
  }

  // What a hook returned, or what the engine left, may be a view of another gradient.
  static void unshare(at::Tensor& gradient) {
    if (!shares_storage(gradient)) return;
    c10::NoGradGuard no_grad;
    gradient = gradient.clone();
  }

  const LocalBackwardOptions& options_;
  const bool anomaly_;
  bool has_writers_ = false;  // users' code runs with a node that is no leaf
  absl::flat_hash_map<Node*, Waiting> waiting_;
  c10::SmallVector<Node*, 4> fresh_leaves_;  // reached leaves that had no gradient
  std::vector<Ready> ready_;                 // a heap
  Held* held_ = nullptr;                     // in a first half only
  const absl::flat_hash_map<const Node*, uint64_t>* next_made_ = nullptr;  // second half only
};

}  // namespace

at::Tensor* LocalBackwardOptions::discarded() {
  static at::Tensor sink;
  return &sink;
}

void run_local_backward(const edge_list& roots, variable_list& gradients,
                        const LocalBackwardOptions& options) {
  if (roots.empty()) return;
  LocalBackward backward(options);
  backward.discover(roots);
  backward.run(roots, gradients);
}

struct WeightBackward::Held : LocalBackward::Held {};

WeightBackward::WeightBackward() = default;
WeightBackward::~WeightBackward() = default;
WeightBackward::WeightBackward(WeightBackward&&) noexcept = default;
WeightBackward& WeightBackward::operator=(WeightBackward&&) noexcept = default;

void WeightBackward::run(const LocalBackwardOptions& options) {
  const std::unique_ptr<Held> held = std::move(held_);
  if (held == nullptr) return;
  LocalBackward backward(options);
  backward.discover(held->entries);
  backward.run(*held);
}

WeightBackward run_input_backward(const edge_list& roots, variable_list& gradients,
                                  const LocalBackwardOptions& options) {
  WeightBackward rest;
  if (roots.empty()) return rest;
  rest.held_ = std::make_unique<WeightBackward::Held>();
  LocalBackward backward(options);
  backward.discover(roots);
  backward.run_urgent(roots, gradients, rest.held_.get());
  return rest;
}

void check_held_gradients(bool on) { checks_held_gradients = on; }

}  // namespace gpipe::internal
