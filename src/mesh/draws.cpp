#include "mesh/draws.h"

#include <ATen/Functions.h>
#include <c10/util/hash.h>

#include <set>

#include "core/bind.h"
#include "interpreters/generators.h"
#include "tower/errors.h"

namespace tower::mesh {
namespace {

int64_t hash_of(const Tensor& state) {
  const auto* bytes = static_cast<const char*>(state.const_data_ptr());
  return static_cast<int64_t>(
      std::hash<std::string_view>{}(std::string_view(bytes, static_cast<size_t>(state.numel()))));
}

// Draws of one example take as much of the generator as those of another.
bool draws_evenly(const Operator& op) {
  static const auto& uneven = *new std::set<std::string_view>{"aten::poisson", "aten::binomial",
                                                              "aten::_standard_gamma", "aten::_sample_dirichlet"};
  const bool elementwise = op.vmap_family != nullptr && std::string_view(op.vmap_family) == "elementwise random";
  const auto& arguments = op.schema().arguments();
  const bool of_size =
      std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.name() == "size"; });
  return (elementwise || of_size) && uneven.count(op.name().substr(0, op.name().find('.'))) == 0;
}

// This process's examples as the whole batch's: what stands for those of other processes does not matter.
Tensor filled_up(const Tensor& value, int64_t dim, int64_t size, int64_t before) {
  const int64_t here = value.size(dim);
  const auto zeros = [&](int64_t length) {
    Sizes sizes(value.sizes());
    sizes[static_cast<size_t>(dim)] = length;
    return at::zeros(sizes, value.options());
  };
  return at::cat({zeros(before), value, zeros(size - before - here)}, dim);
}

void draw_of_whole_batch(AxisVmap& level, const Operator& op, Stack& stack, const std::function<void(Vmap&)>& run) {
  const AxisPointer& examples = level.examples();
  const int64_t size = examples->size(), before = examples->before();
  const Below below(level);
  const auto whole = c10::make_intrusive<Vmap>(size, level.randomness(), level.label());
  const Scope scope(whole);
  DispatchGuard keys;
  keys.see_every_operator(false);
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, level);
    if (!w) return t;
    const Payload& p = w->payload();
    return p.tracked() ? wrap(*whole, Payload{filled_up(p.value, p.index, size, before), {}, p.index}) : p.value;
  });
  run(*whole);
  replace_outputs(stack, [&](Tensor&& t, size_t) {
    Wrapper* w = as_wrapper_of(t, *whole);
    const Payload& p = w->payload();
    if (!p.tracked()) return wrap_constant(level, p.value);
    return wrap(level, Payload{p.value.narrow(p.index, before, examples->here()), {}, p.index});
  });
}

// From a stream that begins elsewhere in each process. Afterwards the generators stand alike again.
void draw_from_own_stream(AxisVmap& level, const Stack& stack, const std::function<void(Vmap&)>& run) {
  at::Generator generator = generator_of(stack);
  const Tensor common = state_of(generator);
  const auto seed = c10::get_hash(hash_of(common), level.examples()->group()->rank());
  const auto reseed = [&](uint64_t to) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(to);
  };
  reseed(seed);
  const Tensor own = state_of(generator);
  run(level);
  const bool drew = !at::equal(state_of(generator), own);
  if (drew) reseed(static_cast<uint64_t>(hash_of(common)));
  else set_state(generator, common);
}

}  // namespace

bool may_draw(const Operator& op) { return op.random() || (op.foreign() && !op.vmap); }

void draw_apart(AxisVmap& level, const Operator& op, Stack& stack, const std::function<void(Vmap&)>& run) {
  if (op.random() && draws_evenly(op)) draw_of_whole_batch(level, op, stack, run);
  else draw_from_own_stream(level, Stack(stack), run);
}

void check_generators(const AxisVmap& level, const Stack& stack) {
  at::Generator generator = generator_of(stack);
  const mesh::GroupPointer& group = level.examples()->group();
  const int64_t own = hash_of(state_of(generator));
  const std::vector<int64_t> all = group->gather_number("comparison of generators", own);
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != own)
      throw RandomnessError(level.describe() + ": random numbers are drawn along axis '" + group->axis() +
                            "', but the generators of processes " + std::to_string(group->rank()) + " and " +
                            std::to_string(r) +
                            " do not stand alike. Seed them alike (manual_seed), and let all processes draw the "
                            "same outside of the mapped function.");
}

}  // namespace tower::mesh
