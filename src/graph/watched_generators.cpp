#include "graph/watched_generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>

#include <algorithm>

#include "core/bind.h"
#include "tower/detail/known_generators.h"
#include "tower/errors.h"

namespace tower {

namespace {

thread_local const detail::KnownGenerators* innermost_known = nullptr;

}  // namespace

detail::KnownGenerators::KnownGenerators(std::vector<at::Generator> generators)
    : generators_(std::move(generators)), outer_(std::exchange(innermost_known, this)) {}
detail::KnownGenerators::~KnownGenerators() { innermost_known = outer_; }

const detail::KnownGenerators* detail::KnownGenerators::innermost() { return innermost_known; }

bool detail::KnownGenerators::has(const at::Generator& generator) const {
  for (const KnownGenerators* known = this; known; known = known->outer_)
    if (std::find(known->generators_.begin(), known->generators_.end(), generator) != known->generators_.end())
      return true;
  return false;
}

}  // namespace tower

namespace tower::compiler {
namespace {

bool is_default(const at::Generator& generator) {
  const at::Device device = generator.device();
  return (device.is_cpu() || at::isAccelerator(device.type())) &&
         at::globalContext().defaultGenerator(device) == generator;
}

// Whether draws alone lead from one state of the CPU's default generator to another. Other threads draw from it, too,
// and a function is not refused for what they do; a seed, or a state that was put back, lies not ahead.
bool is_drawn_on(const Tensor& from, const Tensor& to) {
  constexpr int kMostBlocks = 2000;  // a million numbers
  const auto engine_at = [](const Tensor& state) {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_state(state);
    return at::check_generator<at::CPUGeneratorImpl>(generator)->engine();
  };
  at::mt19937 engine = engine_at(from);
  const at::mt19937 end = engine_at(to);
  if (engine.data().seed_ != end.data().seed_) return false;
  for (int block = 0; block < kMostBlocks; ++block) {
    if (engine.data().state_ == end.data().state_) return block > 0 || end.data().next_ >= engine.data().next_;
    for (size_t k = 0; k < engine.data().state_.size(); ++k) engine();
  }
  return false;
}

}  // namespace

WatchedGenerators::WatchedGenerators() {
  note(at::globalContext().defaultGenerator(at::kCPU));
  if (const auto* known = tower::detail::KnownGenerators::innermost())
    for (const at::Generator& g : known->generators()) note(g);
}

void WatchedGenerators::note(const at::Generator& generator) {
  for (const auto& [known, state] : states_)
    if (known == generator) return;
  at::Generator g = generator;
  states_.emplace_back(g, state_of(g));
}

void WatchedGenerators::note(const Tensor& argument) {
  if (argument.defined() && !argument.is_cpu() && at::isAccelerator(argument.device().type()))
    note(at::globalContext().defaultGenerator(argument.device()));
}

void WatchedGenerators::before(const Level& level, const Operator& op, const Stack& args) {
  check_unmoved(level);
  const auto* known = tower::detail::KnownGenerators::innermost();
  for (const IValue& v : args) {
    if (!v.isGenerator()) continue;
    const at::Generator generator = v.toGenerator();
    if (known && !known->has(generator) && !is_default(generator)) refuse_made(level, op.name());
    note(generator);
  }
}

void WatchedGenerators::after() {
  for (auto& [generator, state] : states_) state = state_of(generator);
}

void WatchedGenerators::check_unmoved(const Level& level) const {
  DispatchGuard keys;
  keys.see_no_operator();
  for (auto [generator, state] : states_) {
    const Tensor now = state_of(generator);
    if (at::equal(now, state)) continue;
    if (generator.device().is_cpu() && is_default(generator) && is_drawn_on(state, now)) continue;
    throw UnsupportedError(
        level.describe() +
        ": the function moved a random number generator otherwise than by drawing from it with an operator: it gave it "
        "a seed (manual_seed) or a state (fork_rng, or a checkpoint that draws again). That would not be done again at "
        "each call, where numbers are drawn from where the generator stands. Leave it outside of the compiled "
        "function, or pass the numbers in.");
  }
}

// One holder is the list here.
bool WatchedGenerators::is_held_by(const at::Generator& generator, size_t holders) const {
  return holders > 0 && !is_default(generator) &&
         c10::raw::intrusive_ptr::use_count(generator.unsafeGetGeneratorImpl()) <= holders + 1;
}

void WatchedGenerators::refuse_made(const Level& level, const std::string& who) {
  throw UnsupportedError(level.describe() + ": " + who +
                         " draws from a generator that was made inside of the function. It would not be made again at "
                         "each call, which would draw on from it. Make it outside, where the function captures it.");
}

}  // namespace tower::compiler
