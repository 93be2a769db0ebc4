#include "interpreters/history.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "core/torch_version.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {
namespace {

using torch::autograd::AutogradMeta;
using torch::autograd::Edge;
using torch::autograd::variable_list;

// LibTorch's engine runs it wherever it comes to a node, before it takes a gradient there.
class Refusal final : public torch::autograd::FunctionPreHook {
 public:
  explicit Refusal(std::string level) : level_(std::move(level)) {}

  variable_list operator()(const variable_list&) override {
    const detail::Spellings& spell = detail::spellings();
    throw UnsupportedError(level_ + ": backward() or " + spell.autograd_grad +
                           " was called on a tensor inside of the transform, from which LibTorch's autograd finds no "
                           "way back. Call " +
                           spell.grad + " or " + spell.vjp + "; they nest.");
  }

 private:
  std::string level_;
};

class OnATape final : public torch::autograd::Node {
 public:
  OnATape(const Wrapper& w, torch::autograd::edge_list next) : Node(std::move(next)) {
    torch_version::add_input(static_cast<Node&>(*this), at::TensorOptions().dtype(w.dtype()).device(w.device()));
    add_tensor_pre_hook(std::make_unique<Refusal>(const_cast<Wrapper&>(w).level().describe()));
  }

  variable_list apply(variable_list&&) override { return {}; }  // the hook comes first
  std::string name() const override { return "OnATape"; }
  bool has_other_hooks() { return tensor_pre_hooks().size() > 1 || !retains_grad_hooks().empty(); }
};

bool was_shown(const AutogradMeta& meta) {
  const auto accumulator = meta.grad_accumulator_.lock();
  return dynamic_cast<const OnATape*>(meta.grad_fn_.get()) || dynamic_cast<const OnATape*>(accumulator.get());
}

}  // namespace

// The graph that LibTorch sees: all results come from one node, and that from one that stands for all inputs.
struct History::Graph {
  torch_version::NodePtr inputs, results;
};

History::History() = default;
History::~History() = default;

void History::show_input(Wrapper& w) {
  if (!graph_) graph_ = std::make_unique<Graph>(torch_version::make_node<OnATape>(w, torch::autograd::edge_list()));
  auto meta = std::make_unique<AutogradMeta>(&w, /*requires_grad=*/true);
  meta->grad_accumulator_ = decltype(meta->grad_accumulator_)(graph_->inputs);
  w.set_autograd_meta(std::move(meta));
}

void History::show_result(Wrapper& w) {
  auto& results = graph_->results;
  if (!results) results = torch_version::make_node<OnATape>(w, torch::autograd::edge_list{Edge(graph_->inputs, 0)});
  w.set_autograd_meta(std::make_unique<AutogradMeta>(&w, /*requires_grad=*/false, Edge(results, 0)));
}

void History::show_untracked(Wrapper& w) {
  const auto* meta = static_cast<AutogradMeta*>(w.autograd_meta());
  if (meta && !was_shown(*meta)) return;  // what user code made of a constant stays
  const Tensor& value = w.stored().value;
  const Wrapper* below = as_wrapper(value);
  if (!value.requires_grad() || (below && below->level().kind() == Kind::vjp)) {
    if (meta) w.set_autograd_meta(nullptr);
    return;
  }
  const auto node = torch_version::make_node<OnATape>(w, torch::autograd::edge_list());
  w.set_autograd_meta(std::make_unique<AutogradMeta>(&w, /*requires_grad=*/false, Edge(node, 0)));
}

void History::check(c10::ArrayRef<Tensor> inputs, const Level& level) const {
  bool hooked = graph_ && graph_->results && static_cast<OnATape&>(*graph_->results).has_other_hooks();
  for (const Tensor& t : inputs) {
    Wrapper* w = as_wrapper_of(t, level);
    const auto* meta = w ? static_cast<AutogradMeta*>(w->autograd_meta()) : nullptr;
    if (!meta) continue;
    hooked = hooked || !meta->hooks_.empty();
    if (!meta->requires_grad())
      throw UnsupportedError(level.describe() +
                             ": the function took requires_grad from an argument that it is differentiated by. "
                             "Use detach() where no derivative is wanted.");
  }
  if (hooked)
    throw UnsupportedError(level.describe() +
                           ": the function registered a hook on a tensor inside of the transform, where LibTorch's "
                           "autograd does not run. Use " +
                           detail::spellings().changed_gradient + " to change a gradient on its way.");
}

}  // namespace tower
