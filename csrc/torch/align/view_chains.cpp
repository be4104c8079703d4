// view_chains.cpp: see view_chains.h.
#include "torch/align/view_chains.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <typeinfo>

#include "torch/threads/forks.h"
#include "torch/tensor/state.h"

namespace managed {
namespace {

using torch::autograd::Node;

std::mutex& chains_mutex() {
  static auto* mutex = [] {
    survive_fork<chains_mutex>();
    return new std::mutex; // never destroyed: tensors may outlive static destructors
  }();
  return *mutex;
}
const MadeAtStart chains_at_start([] { chains_mutex(); });

bool has_hooks(Node& n) {
  return !n.pre_hooks().empty() || !n.tensor_pre_hooks().empty() || !n.retains_grad_hooks().empty() ||
      !n.post_hooks().empty();
}

// Whether nothing but ViewHome nodes, and a view that is being used, holds the chain's nodes. The head has one
// reference from the chain and `edges` more, each later node one from the node before it. The node without outputs,
// that is without edges of its own, is the accumulator: the chain ends before it.
bool is_ours(const Chain& chain, long edges) {
  if (holders(chain.head) != edges + 1) return false;
  for (const NodePtr* next = &chain.head->next_edge(0).function; (*next)->num_outputs() != 0;
       next = &(*next)->next_edge(0).function)
    if (holders(*next) != 1) return false;
  return true;
}

// Returns owning pointers, so that no chain dies under the lock.
std::vector<ChainHold> chains_of(TensorState& leaf) {
  std::vector<ChainHold> alive;
  std::lock_guard<std::mutex> lock(chains_mutex());
  for (const auto& known : leaf.chains)
    if (auto chain = known.lock()) alive.push_back(std::move(chain));
  return alive;
}

long edges_to(const ChainHold& chain) { return chain.use_count() - 1; } // the caller has one hold

const NodePtr& end_of(const NodePtr& head) {
  const NodePtr* end = &head;
  while ((*end)->next_edge(0).function->num_outputs() != 0) end = &(*end)->next_edge(0).function;
  return *end;
}

} // namespace

bool is_torchs_own(const Node& n) {
  return std::string_view(typeid(n).name()).find("autograd9generated") != std::string_view::npos;
}

bool leads_to(const NodePtr& head, const Node* accumulator) {
  const Node* node = head.get();
  while (node && node != accumulator) {
    if (node->num_outputs() != 1 || !is_torchs_own(*node)) return false;
    node = node->next_edge(0).function.get();
  }
  return node != nullptr && head.get() != accumulator;
}

bool is_watched(const Node* head) {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  for (const Node* n = head; n->num_outputs() != 0; n = n->next_edge(0).function.get()) {
    if (has_hooks(const_cast<Node&>(*n))) return true; // torch's own lists have no const readers for all kinds
    if (!asked) continue;
    const auto found = asked->find(const_cast<Node*>(n));
    if (found != asked->end() && found->second.captures_) return true;
  }
  return false;
}

ChainHold hold_chain(TensorState& leaf, const NodePtr& head) {
  std::vector<ChainHold> alive = chains_of(leaf);
  auto found = std::find_if(alive.begin(), alive.end(), [&](const ChainHold& c) { return c->head == head; });
  if (found != alive.end()) return *found;
  auto made = std::make_shared<Chain>(head);
  std::lock_guard<std::mutex> lock(chains_mutex());
  auto& known = leaf.chains;
  known.erase(std::remove_if(known.begin(), known.end(), [](const auto& c) { return c.expired(); }), known.end());
  known.push_back(made);
  return made;
}

void note_holders(const ChainHold& chain) { chain->ours = is_ours(*chain, chain.use_count()); }

long held_by_views(TensorState& leaf) {
  long n = 0;
  for (const ChainHold& chain : chains_of(leaf)) {
    if (!chain->ours) return -1;
    n++;
  }
  return n;
}

long held_by_views(TensorState& leaf, const at::Tensor& through) {
  const Node* used = through.defined() && through.requires_grad() ? through.grad_fn().get() : nullptr;
  long n = 0;
  for (const ChainHold& chain : chains_of(leaf)) {
    const bool is_used = chain->head.get() == used;
    if (!is_ours(*chain, edges_to(chain) + is_used)) return -1;
    if (is_used) used = nullptr; // counted
    n++;
  }
  return n + (used != nullptr);
}

std::vector<NodePtr> ends_of_views(TensorState& leaf, const at::Tensor& through) {
  std::vector<NodePtr> ends;
  for (const ChainHold& chain : chains_of(leaf)) ends.push_back(end_of(chain->head));
  if (through.defined() && through.requires_grad() && through.grad_fn()) ends.push_back(end_of(through.grad_fn()));
  return ends;
}

} // namespace managed
