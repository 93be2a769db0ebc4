#include "mesh/axis.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "control/speech.h"
#include "core/bind.h"
#include "mesh/draws.h"
#include "operators/lifting.h"
#include "tower/detail/foreign_frame.h"
#include "tower/errors.h"

namespace tower::mesh {

namespace {

Counts ask(const GroupPointer& group, int64_t here) {
  auto counts = std::exchange(group->foretold, std::nullopt);
  if (!counts || (*counts)[static_cast<size_t>(group->rank())] != here)
    counts = group->gather_number("size of the axis", here);
  return std::make_shared<const std::vector<int64_t>>(std::move(*counts));
}

// NOTE [Sizes in graphs]
// To a graph that is kept, how many examples each process has are constants. This process's own are among the sizes of
// the arguments that the graph is for, but not those of others. So whoever runs it asks first, as the function did when
// it was traced. There is a graph for all sizes together that have come: either all processes have it, or all trace,
// and what was asked is then known. Only so do they send the same messages, also in the backward pass, whose order in a
// graph is another than while it is traced.
void assume_in_graphs(const GroupPointer& group, const Counts& counts) {
  for (Level* level = top(); level; level = level->below())
    level->assume([group, counts] {
      const Counts now = ask(group, (*counts)[static_cast<size_t>(group->rank())]);
      if (*now != *counts) {
        group->foretold = *now;
        return false;
      }
      assume_in_graphs(group, counts);  // of those around, of which this one becomes a part
      return true;
    });
}

}  // namespace

const Counts& Axis::counts() {
  if (counts_) return counts_;
  counts_ = group_ ? ask(group_, here_) : std::make_shared<const std::vector<int64_t>>(1, here_);
  if (group_) assume_in_graphs(group_, counts_);
  return counts_;
}
int64_t Axis::size() { return group_ ? std::reduce(counts()->begin(), counts()->end()) : here_; }
int64_t Axis::before() { return group_ ? std::reduce(counts()->begin(), counts()->begin() + group_->rank()) : 0; }

namespace {

bool may_be_differentiated(Tensor t) {
  if (!t.is_floating_point() && !t.is_complex()) return false;
  while (Wrapper* w = as_wrapper(t)) {
    const Kind kind = w->level().kind();
    const bool follows = kind == Kind::jvp || kind == Kind::vjp;
    if (follows ? w->payload().tracked() : kind != Kind::vmap) return true;
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return libtorch_follows(t);
}

}  // namespace

const Tensor* AxisVmap::find(const Tensor& shared) const {
  const auto found = varied_.find({shared.unsafeGetTensorImpl(), c10::GradMode::is_enabled()});
  if (found == varied_.end() || found->second.writes != write_count(shared)) return nullptr;
  return &found->second.varying;
}

void AxisVmap::vary_all(const Tensors& shared) {
  const Tensors varying = vary(examples_->group(), shared);
  for (size_t k = 0; k < shared.size(); ++k)
    varied_.insert_or_assign({shared[k].unsafeGetTensorImpl(), c10::GradMode::is_enabled()},
                             Varied{shared[k], varying[k], write_count(shared[k])});
}

Tensor AxisVmap::varying(const Tensor& shared) {
  if (!examples_->group() || !may_be_differentiated(shared)) return shared;
  if (const Tensor* known = find(shared)) return *known;
  const Below below(*this);
  vary_all(together_with(shared));
  return *find(shared);
}

// NOTE [Buckets]
// With one of the arguments come others, so that one message has the derivatives of all. Where these are many bytes,
// those that follow come, up to kBucket: a bucket is summed in the backward pass as soon as the operators that used it
// are done with, while others are computed.
dynamic::Tensors AxisVmap::together_with(const Tensor& shared) const {
  constexpr int64_t kBucket = 4 << 20;
  const auto bytes_of = [](const Tensor& t) { return t.numel() * static_cast<int64_t>(t.element_size()); };
  Tensors waiting;
  int64_t bytes = 0;
  for (const Tensor& t : shared_) {
    if (!t.defined() || !may_be_differentiated(t) || find(t)) continue;
    waiting.push_back(t);
    bytes += bytes_of(t);
  }
  auto next = std::find_if(waiting.begin(), waiting.end(), [&](const Tensor& t) { return t.is_same(shared); });
  if (next == waiting.end()) return {shared};
  if (bytes <= kBucket) return waiting;
  Tensors together;
  for (bytes = 0; next != waiting.end() && bytes < kBucket; ++next) {
    together.push_back(*next);
    bytes += bytes_of(*next);
  }
  return together;
}

void AxisVmap::process(const Operator& op, Stack& stack) {
  if (!examples_->group() || ListOperator::from(op)) return Vmap::process(op, stack);
  const bool draws = randomness() != Randomness::error && may_draw(op);
  if (draws && !std::exchange(generators_agree_, true)) check_generators(*this, stack);
  const bool apart = draws && randomness() == Randomness::different;
  bool maps = apart && op.random(), shares = false;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, *this);
    if (w && w->payload().tracked()) maps = true;
    else shares = shares || may_be_differentiated(w ? w->payload().value : t);
  });
  const bool mixes = maps && shares;
  if (mixes)
    replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
      Wrapper* w = as_wrapper_of(t, *this);
      if (w && w->payload().tracked()) return t;
      const Tensor& shared = w ? w->payload().value : t;
      return op.custom && may_be_differentiated(shared) ? repeated(varying(shared)) : varying(shared);
    });
  if (apart) draw_apart(*this, op, stack, [&](Vmap& level) { level.Vmap::process(op, stack); });
  else Vmap::process(op, stack);
  // What was made of both differs, whatever the operator's rule says of the batch.
  if (mixes)
    replace_outputs(stack, [&](Tensor&& t, size_t) {
      Wrapper* w = as_wrapper_of(t, *this);
      return !w || w->payload().tracked() ? t : repeated(w->payload().value);
    });
}

// A value as a batch of what is the same for each example.
Tensor AxisVmap::repeated(const Tensor& value) {
  const Below below(*this);
  Sizes sizes(value.sizes());
  sizes.insert(sizes.begin(), batch_size());
  return wrap(*this, Payload{value.unsqueeze(0).expand(sizes), {}, 0});
}

Vmap::MakeLevel AxisVmap::images() const {
  return [axis = examples_, randomness = randomness(), label = label(), number = this->axis()](int64_t) {
    auto image = c10::make_intrusive<AxisVmap>(axis, randomness, label, number);
    Running::note(image);
    return image;
  };
}

void AxisVmap::release_resources() {
  shared_.clear();
  varied_.clear();
  Vmap::release_resources();
}

namespace {

// The innermost derivative of that name that `t` is followed by.
const Level* derivative_of(const Tensor& of, std::initializer_list<std::string_view> labels) {
  for (Tensor t = of; Wrapper* w = as_wrapper(t);) {
    const Level& level = w->level();
    const bool follows = level.kind() == Kind::jvp || level.kind() == Kind::vjp;
    if (follows && w->payload().tracked() && std::find(labels.begin(), labels.end(), level.label()) != labels.end())
      return &level;
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return nullptr;
}

}  // namespace

void refuse_columns(const Tensor& t) {
  if (const Level* level = derivative_of(t, {"jacfwd", "hessian"}))
    throw UnsupportedError(
        level->describe() +
        ": it differentiates by an argument of which each process has a part: the processes would take "
        "their columns at the same time, and what is summed over them would mix. Differentiate by what "
        "all processes share, or inside of the mapped function; grad and jacrev of a shared result are "
        "right.");
}

void refuse_rows(const Tensor& t) {
  if (const Level* level = derivative_of(t, {"jacrev"}))
    throw UnsupportedError(
        level->describe() +
        ": it differentiates a result of which each process has a part: the processes would take their "
        "rows at the same time, and the derivatives by what they share would mix. Reduce or gather "
        "inside of the mapped function, or use jacfwd by what is shared.");
}

void refuse_rows_of_gradients(const Tensor& of) {
  for (Tensor t = of; Wrapper* w = as_wrapper(t);) {
    const bool by_rows = w->level().kind() == Kind::vjp && w->payload().tracked();
    for (const Level* around = by_rows ? w->level().below() : nullptr; around; around = around->below())
      if (around->kind() == Kind::vjp && around->label() == std::string_view("jacrev"))
        throw UnsupportedError(
            around->describe() + ": it is around a derivative (" + w->level().describe() +
            ") by an argument of which each process has a part, which is a part, too: the processes would take its "
            "rows at the same time, and what is summed over them would mix. Use jacfwd by what is shared.");
    Tensor value = w->payload().value;
    t = std::move(value);
  }
}

void check_agreement(Group& group, const char* what, Tensors values) {
  for (Tensor& t : values) t = value_under_all_levels(t);
  group.check_agreement(what, values);
}

std::vector<int64_t> AxisVmap::in_all_processes(std::vector<int64_t> counts) {
  if (!examples_->group()) return counts;
  const Tensor sums = examples_->group()->sum("agreement of a loop", {at::tensor(counts, at::kLong)})[0];
  return {sums.const_data_ptr<int64_t>(), sums.const_data_ptr<int64_t>() + sums.numel()};
}

Tensor examples_of(AxisVmap& level) {
  DispatchGuard keys;
  keys.see_no_operator();
  return wrap(level, Payload{at::arange(level.batch_size(), at::kLong), {}, 0});
}

namespace {

// The innermost last.
thread_local std::vector<c10::weak_intrusive_ptr<AxisVmap>> running;

template <class F>
void for_each_running(F&& f) {
  std::erase_if(running, [](const auto& weak) { return weak.expired(); });
  for (size_t k = running.size(); k-- > 0;)
    if (const auto level = running[k].lock(); level && !level->ended() && !f(*level)) return;
}

}  // namespace

void Running::note(const c10::intrusive_ptr<AxisVmap>& image) {
  std::erase_if(running, [](const auto& weak) { return weak.expired(); });
  running.emplace_back(image);
}

Running::Running(AxisVmap& level) : level_(level) {
  running.emplace_back(c10::intrusive_ptr<AxisVmap>::reclaim_copy(&level));
}
Running::~Running() {
  for (size_t k = running.size(); k-- > 0;)
    if (const auto level = running[k].lock(); level.get() == &level_) {
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(k));
      return;
    }
}

AxisVmap* Running::find(std::string_view axis) {
  AxisVmap* found = nullptr;
  for_each_running([&](AxisVmap& level) {
    if (level.examples()->name() == axis) found = &level;
    return !found;
  });
  return found;
}

void Running::refuse_twice(const Group& group) {
  for_each_running([&](AxisVmap& level) {
    if (level.examples()->group().get() == &group)
      throw ArgumentError(
          "vmap over axis '" + group.axis() + "': inside of a vmap across the same processes. Each has a part " +
          "of the outer examples, and would pair it with its part of the inner ones alone. Map over one of them "
          "in each process (leave out across), or across another axis of the mesh.");
    return true;
  });
}

AxisVmap& find_axis(std::string_view name, const char* who) {
  speech::Listener::note_asked();
  std::string names;
  bool compiled = false;
  for (Level* level = top(); level; level = level->below()) {
    // A loop's steps are traced with the vmaps around it, which they capture; a graph that is kept is run under others.
    compiled = compiled || (level->kind() == Kind::trace && level->label() != std::string_view("while_loop"));
    if (level->kind() != Kind::vmap) continue;
    auto* named = dynamic_cast<AxisVmap*>(level);
    if (!named) continue;
    if (named->examples()->name() == name && compiled)
      throw UnsupportedError(named->describe() + ": " + who + " speaks of axis '" + std::string(name) +
                             "' in a function that is compiled inside of this vmap, and would be kept for others. "
                             "Compile around the vmap: compile(vmap(f, …)).");
    if (named->examples()->name() == name) return *named;
    names += (names.empty() ? "'" : ", '") + named->examples()->name() + "'";
  }
  AxisVmap* hidden = Running::find(name);
  if (hidden && speech::LeavingOut::now())
    throw UnsupportedError(hidden->describe() + ": " + who + " speaks of axis '" + std::string(name) +
                           "' in a step of a while_loop with compact, which left out the examples that have ended. "
                           "Steps in which examples speak are made for all; but the first step that some did not make "
                           "was without collectives. Set compact to 0.");
  if (hidden)
    detail::ForeignFrame::raise(InvisibleTensorError(
        hidden->describe() + ": " + who + " speaks of axis '" + std::string(name) +
            "' in a rule or an implementation whose operands do not differ between its examples, so that it is not "
            "seen. Pass something that does, as axis_index.",
        examples_of(*hidden)));
  detail::ForeignFrame::raise(speech::NoAxisError(
      std::string(who) + ": there is no axis '" + std::string(name) + "' here; " +
      (names.empty() ? "no vmap that is running has a named axis. Give one a name, by its option axis."
                     : "the axes of running vmaps are " + names + ".")));
}

}  // namespace tower::mesh
