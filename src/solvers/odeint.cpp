// odeint: a while_loop over the steps of one system. Where values are asked for in between, it is a scan over the
// times, whose step is the loop up to the next one; the last step that was made is then part of the state, as a
// polynomial.
#include "tower/odeint.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

#include "control/checkpoint.h"
#include "core/level.h"
#include "core/tensor_lists.h"
#include "core/wrapper.h"
#include "solvers/ode_adjoint.h"
#include "solvers/ode_events.h"
#include "solvers/ode_methods.h"
#include "solvers/vectors.h"
#include "tower/errors.h"

namespace tower {

using dynamic::Tensors;
using solvers::all_finite;
using solvers::OdeMethod;
using solvers::OdeStep;
using solvers::Slope;

namespace {

// The state of the loop; behind these come, where there is an event, a number of the sign of its value, the method's
// memory and, where there is a path, its begin, its length, y at
// its begin, and its polynomial.
enum : size_t {
  kY,
  kT,
  kH,          // of the next step to be tried, with a sign
  kLastError,  // the logarithm, of base 2, of that of the last step that was made
  kStatus,     // 0, one of OdeStatus's, or
  kSteps,
  kRejected,
  kRest,
  kEvent = kRest
};
// while the last trial was not finite, and a shorter step may be.
constexpr int64_t kUndefinedThere = -1;

// NOTE [Step control]
// Proportional and integral (K. Gustafsson, ACM TOMS 17 (1991) 533–554; E. Hairer, G. Wanner, IV.2): with the error e
// of a step relative to the tolerance, the next one is longer by 0.9 e^(−(i + p)/k) (error before)^(p/k), which is
// bounded. A step that is not made is tried again by e^(−1/k). These powers decide how many steps there are, not what a
// step gives, and 0.9 is there because e is an estimate: two percent of them are as good as sixteen digits. So they are
// made of a number's exponent and of products: in a kernel the exponential and the logarithm took a third of all time.
// i and p are those of Hairer's DOPRI5, whose β = 0.04 is p / k; with p = 0.4 and i = 0.3 there are a fifth more steps.
constexpr double kIntegral = 0.65, kProportional = 0.2, kSafety = 0.9, kShrink = 0.2, kGrow = 10;
constexpr double kLeastError = 1e-10;

int64_t number(OdeStatus status) { return static_cast<int64_t>(status); }

// To 0.01.
Tensor rough_log2(const Tensor& x) {
  const auto [m, exponent] = at::frexp(x);  // m from 1/2 to 1
  return at::add((4 - 4. / 3 * m) * m - 5. / 3, exponent) - 1;
}
// (1 + x ln 2 / 8)^8, between these two.
Tensor rough_exp2(const Tensor& x, double least, double most) {
  constexpr int kSquarings = 3;
  constexpr double kRoot = 1 << kSquarings;
  Tensor power = at::clamp(1 + std::numbers::ln2 / kRoot * x, std::pow(least, 1 / kRoot), std::pow(most, 1 / kRoot));
  for (int k = 0; k < kSquarings; ++k) power = power * power;
  return power;
}

// NOTE [Steps that are not made]
// Where f is nan or infinite on the way of a step that is not made, reverse mode would multiply its derivatives there
// by the zero that comes back from the step. So where it may come, a step is tried outside of its sight, and made again
// with f at the state before it in place of each point of a step that is not made: f is finite there. Forward mode
// selects tangents as it does values, and is right without.
Slope only_where(const Tensor& made, const Slope& f, const Tensor& t, const Tensor& y) {
  return [made, f, t, y](const Tensor& stage_t, const Tensor& stage_y) {
    return f(at::where(made, stage_t, t), at::where(made, stage_y, y));
  };
}

Tensors detached(Tensors list) {
  for (Tensor& t : list) t = t.detach();
  return list;
}

// NOTE [Derivatives of a state that there is not]
// Chosen by where(), nan would have the derivative zero, which looks like that of a sound system. Those of this nan are
// nan along what `value` depends on: ∞ − ∞, of products that overflow. A cotangent that is zero remains so, through
// which a system that its caller leaves out is left out of the gradients that all share.
Tensor none_like(const Tensor& value) {
  const double most = value.scalar_type() == at::kDouble ? std::numeric_limits<double>::max()
                      : value.scalar_type() == at::kHalf ? 65504
                                                         : std::numeric_limits<float>::max() / 2;  // and of bfloat16
  const Tensor change = value - value.detach();
  return change * most * most + change * -most * most + std::numeric_limits<double>::quiet_NaN();
}

// What errors are allowed, and how large they are beside that.
class Tolerances {
 public:
  Tolerances(const OdeOptions& options, const solvers::Unknowns& like, const Tensors& y0)
      : rtol_(options.rtol.number()), atol_(options.atol.number()) {
    if (options.rtol.is_number() && options.atol.is_number()) return;
    const Tensor rtol = of_each(options.rtol, "rtol", like, y0), atol = of_each(options.atol, "atol", like, y0);
    constexpr double kInfinite = std::numeric_limits<double>::infinity(),
                     kNan = std::numeric_limits<double>::quiet_NaN();
    const Tensor counts = at::logical_and(rtol != kInfinite, atol != kInfinite);
    rtol_of_each_ = at::where(counts, at::where(rtol >= 0, rtol, kNan), 0.);
    atol_of_each_ = at::where(counts, at::where(atol > 0, atol, kNan), kInfinite);
    count_ = counts.sum().clamp_min(1);
  }

  Tensor allowed(const Tensor& size) const {
    return count_.defined() ? at::addcmul(atol_of_each_, rtol_of_each_, size) : atol_ + rtol_ * size;
  }
  Tensor mean_square(const Tensor& error, const Tensor& allowed) const {
    const Tensor squares = (error / allowed).square();
    return count_.defined() ? squares.sum() / count_ : squares.mean();
  }

 private:
  static Tensor of_each(const Tolerance& tolerance, const char* name, const solvers::Unknowns& like,
                        const Tensors& y0) {
    if (tolerance.is_number()) return at::full({like.size()}, tolerance.number(), like.options());
    Tensors given = tolerance.each();
    if (given.size() == 1 && given[0].dim() == 0) given.resize(y0.size(), given[0]);
    if (given.size() != y0.size())
      throw ArgumentError(std::string("odeint: ") + name + " has " + std::to_string(given.size()) +
                          " tensors, and the state " + std::to_string(y0.size()) + ". It is a tree like the state.");
    Tensors parts;
    for (size_t k = 0; k < y0.size(); ++k) {
      if (!given[k].defined() || !at::isFloatingType(given[k].scalar_type()) ||
          !at::is_expandable_to(given[k].sizes(), y0[k].sizes()))
        throw ArgumentError(std::string("odeint: ") + name + " is " +
                            (given[k].defined() ? describe(given[k]) : "undefined") + " for tensor " +
                            std::to_string(k) + " of the state, which is " + describe(y0[k]) +
                            ". It is of real numbers, and expands to that.");
      parts.push_back(given[k].detach().to(like.options().dtype()).expand(y0[k].sizes()));
    }
    return like.vector(parts, name);
  }

  double rtol_, atol_;
  Tensor rtol_of_each_, atol_of_each_, count_;  // where it is not one number for all
};

struct Walk {
  Slope f;
  std::shared_ptr<const OdeMethod> method;
  OdeOptions options;
  Tolerances tolerances;
  Tensor end, way;  // way: 1 or −1, and 0 where there is none to go
  double epsilon;
  std::optional<solvers::OdeEventRule> event;
  Tensor first_slope = {};  // LibTorch's autograd follows it where it follows what f captured

  Tensor before(const Tensor& t, const Tensor& target) const { return (target - t) * way > 0; }

  // With a path, one step is made in any case: a time that is the first one, too, has the derivatives of a path.
  dynamic::Predicate goes_on_to(const Tensor& target, bool path) const {
    return [self = *this, target, path](const Tensors& s) {
      Tensor is_before = self.before(s[kT], target);
      if (path)
        is_before = at::logical_or(is_before, at::logical_and(s[kSteps] == s[kRejected], self.before(s[kT], self.end)));
      return at::logical_and(at::logical_and(is_before, s[kStatus] <= 0), s[kSteps] < self.options.max_steps);
    };
  }

  // E. Hairer, S. P. Nørsett, G. Wanner, Solving Ordinary Differential Equations I, II.4.
  Tensor first_length(const Tensor& t, const Tensor& y, const Tensor& slope) const {
    constexpr double kTiny = 1e-6;
    const Tensor span = (end - t).abs();
    if (options.step) return at::full_like(t, *options.step);
    if (options.first_step) return at::full_like(t, *options.first_step);
    const Tensor allowed = tolerances.allowed(y.abs());
    const auto size_of = [&](const Tensor& v) { return tolerances.mean_square(v, allowed).sqrt(); };
    const Tensor size = size_of(y), speed = size_of(slope);
    Tensor guess = at::where(at::minimum(size, speed) < 1e-5, kTiny, 0.01 * size / speed);
    guess = at::minimum(at::where(guess > 0, guess, kTiny), span);
    const Tensor there = f(t + way * guess, y + way * guess * slope);
    const Tensor bend = at::maximum(speed, size_of(there - slope) / guess);
    const Tensor by_bend =
        at::where(bend <= 1e-15, at::clamp_min(1e-3 * guess, kTiny), (0.01 / bend).pow(1. / method->order()));
    const Tensor length = at::minimum(at::minimum(100 * guess, by_bend), span);
    return at::maximum(at::where(length > 0, length, guess), 16 * epsilon * t.abs());
  }

  Tensor bounded(const Tensor& h) const {
    return options.longest_step && !options.step ? h.clamp(-*options.longest_step, *options.longest_step) : h;
  }

  Tensors start(const Tensor& t, const Tensor& y, const Tensor& in_order) {
    const Tensor slope = first_slope = f(t, y);
    const Tensor h = way * first_length(t.detach(), y.detach(), slope.detach()).detach();
    const Tensor none = at::zeros({}, t.options().dtype(at::kLong));
    const Tensor finite = at::logical_and(all_finite(y), all_finite(slope));
    const Tensor status =
        at::where(in_order, at::where(finite, none, number(OdeStatus::not_finite)), number(OdeStatus::unordered_times));
    Tensors s{y, t, bounded(h), at::zeros_like(t), status, none, none};
    if (event) s.push_back(event->first_sign(t.detach(), y.detach(), slope.detach(), way));
    return joined(std::move(s), method->first_memory(slope));
  }

  // Of no step: the tangent.
  Tensors with_path(Tensors s) const {
    s.push_back(s[kT]);
    s.push_back(at::ones_like(s[kT]));
    s.push_back(s[kY]);
    s.push_back(first_slope);
    s.resize(s.size() + method->powers() - 1, at::zeros_like(s[kY]));
    return s;
  }

  // A path in the state: its begin, its length, y at its begin, and the polynomial.
  std::ptrdiff_t path_size() const { return 3 + static_cast<std::ptrdiff_t>(method->powers()); }

  // y at the end. Where all times are one no step is made, and it has the tangent's derivatives by them.
  Tensor at_end(const Tensors& s) const {
    const Tensor slope = at::where(way == 0, first_slope, at::zeros_like(first_slope));
    return at::addcmul(s[kY], end - s[kT], slope);
  }

  solvers::OdePath path_of(const Tensors& s) const {
    const auto path = s.end() - path_size();
    return {path[0], path[1], path[2], Tensors(path + 3, s.end())};
  }

  // What becomes of the length of steps, whether this one is made, and the status.
  struct Verdict {
    Tensor good, next_h, error, status;
  };
  Verdict judge(const Tensors& s, const OdeStep& made, const Tensor& h, const Tensor& moves) const {
    const Tensor& before = s[kLastError];
    Tensor finite = all_finite(made.y.detach());
    if (options.step) {
      const Tensor failed = at::where(moves, at::where(finite, s[kStatus], number(OdeStatus::not_finite)),
                                      number(OdeStatus::step_too_small));
      return {at::logical_and(finite, moves), s[kH], before, failed};
    }
    const Tensor allowed = tolerances.allowed(at::maximum(s[kY].detach().abs(), made.y.detach().abs()));
    Tensor square = tolerances.mean_square(made.error.detach(), allowed);
    if (made.coarse_error.defined()) {  // as dop853.f has it
      const Tensor both = square + 0.01 * tolerances.mean_square(made.coarse_error.detach(), allowed);
      square = at::where(both == 0, both, square * (square / both));
    }
    finite = at::logical_and(finite, square < std::numeric_limits<double>::infinity());
    const Tensor small = square <= 1;
    const Tensor error = 0.5 * rough_log2(square.clamp_min(kLeastError * kLeastError));
    const double k = method->order();
    const Tensor change =
        at::where(small, kProportional / k * before - (kIntegral + kProportional) / k * error, error / -k);
    const Tensor factor = rough_exp2(change + std::log2(kSafety), kShrink, kGrow);
    const Tensor good = at::logical_and(at::logical_and(small, finite), moves);
    const Tensor gives_up =
        at::where(s[kStatus] == kUndefinedThere, at::full_like(s[kStatus], number(OdeStatus::not_finite)),
                  number(OdeStatus::step_too_small));
    const Tensor goes_on = at::where(finite, at::zeros_like(s[kStatus]), kUndefinedThere);
    return {good, bounded(h * at::where(finite, factor, kShrink)), at::where(good, error, before),
            at::where(moves, goes_on, gives_up)};
  }

  // The event's number and the status, behind a step.
  std::pair<Tensor, Tensor> watch(const Tensors& s, const Tensor& t, const Tensor& y, const Verdict& is) const {
    const Tensor before = s[kEvent].detach(), now = event->value(t.detach(), y.detach()).detach();
    const Tensor crossed = at::logical_and(is.good, event->crossed(before, now));
    const Tensor undefined = at::logical_and(is.good, all_finite(now).logical_not());
    const Tensor status = at::where(undefined, number(OdeStatus::not_finite), is.status);
    return {at::where(at::logical_and(is.good, crossed.logical_not()), now, before),
            at::where(crossed, number(OdeStatus::event), status)};
  }

  Tensors advance(const Tensors& s, bool path) const {
    const Tensor &y = s[kY], &t = s[kT], &h = s[kH];
    const Tensor remaining = end - t;
    const Tensor is_last = h.abs() * (1 + std::sqrt(epsilon)) >= remaining.detach().abs();
    const Tensor length = at::where(is_last, remaining, h);
    const auto memory = s.begin() + (event ? kEvent + 1 : kRest);
    const auto path_begin = path ? s.end() - path_size() : s.end();
    const Tensors start(memory, path_begin);
    const Tensor next_t = at::where(is_last, end, t + h);
    const bool followed = may_be_recorded(joined(s, {first_slope}));
    const auto [tried, is, watched] = [&] {
      // A graph leaves out what nobody asks for, and what is written under no_grad it would keep with its history.
      const at::AutoGradMode mode(at::GradMode::is_enabled() && (!followed || tracing()));
      const OdeStep step = followed ? method->step(f, t.detach(), y.detach(), detached(start), length.detach(), false)
                                    : method->step(f, t, y, start, length, path);
      Verdict verdict = judge(s, step, length.detach(), next_t.detach() != t.detach());
      Tensors watched;
      if (event) {
        auto [value, status] = watch(s, next_t, step.y, verdict);
        watched.push_back(std::move(value));
        verdict.status = std::move(status);
      }
      return std::tuple(step, verdict, watched);
    }();
    const OdeStep made = followed ? method->step(only_where(is.good, f, t, y), t, y, start, length, path) : tried;
    const auto chosen = [&](const Tensor& next, const Tensor& now) { return at::where(is.good, next, now); };
    Tensors next{chosen(made.y, y),
                 chosen(next_t, t),
                 is.next_h,
                 is.error,
                 is.status,
                 s[kSteps] + 1,
                 at::add(s[kRejected], is.good.logical_not())};
    next.insert(next.end(), watched.begin(), watched.end());
    for (size_t k = 0; k < made.memory.size(); ++k)
      next.push_back(chosen(made.memory[k], memory[static_cast<std::ptrdiff_t>(k)]));
    if (path) {
      const Tensors now = joined({t, length, y}, made.path);
      for (size_t k = 0; k < now.size(); ++k)
        next.push_back(chosen(now[k], path_begin[static_cast<std::ptrdiff_t>(k)]));
    }
    return next;
  }

  Tensors up_to(const Tensor& target, const Tensors& s, bool path) const {
    return dynamic::while_loop(goes_on_to(target, path),
                               [self = *this, path](const Tensors& now) { return self.advance(now, path); }, s,
                               {.checkpoints = options.checkpoints, .compact = options.compact});
  }

  Tensor or_nan(const Tensors& s, const Tensor& target, const Tensor& value) const {
    Tensor sound = s[kStatus] <= 0;
    if (event) sound = at::logical_or(sound, s[kStatus] == number(OdeStatus::event));
    const Tensor there = at::logical_and(sound, before(s[kT], target).logical_not());
    return at::where(there, value, none_like(value));
  }

  // y at the times between the first and the last.
  Tensor in_between(const Tensor& times, Tensors& s) const {
    const auto next = [self = *this](const Tensors& state, const Tensors& target) {
      const Tensors now = self.up_to(target[0], state, true);
      const solvers::OdePath path = self.path_of(now);
      const Tensor value = path.state((target[0] - path.begin) / path.length);
      return std::pair(now, Tensors{self.or_nan(now, target[0], value)});
    };
    auto [last, values] = dynamic::scan(next, s, {times}, {.checkpoints = options.checkpoints});
    s = std::move(last);
    return values[0];
  }
};

void check_options(const OdeOptions& options) {
  const auto positive = [](std::optional<double> number, const char* name) {
    if (number && !(*number > 0 && std::isfinite(*number)))
      throw ArgumentError(std::string("odeint: ") + name + " is " + std::to_string(*number) +
                          "; it is positive and finite, also where time goes backwards.");
  };
  positive(options.step, "step");
  positive(options.first_step, "first_step");
  positive(options.longest_step, "longest_step");
  if (options.atol.is_number()) positive(options.atol.number(), "atol");
  const double rtol = options.rtol.number();
  if (options.rtol.is_number() && !(rtol >= 0 && std::isfinite(rtol)))
    throw ArgumentError("odeint: rtol is " + std::to_string(rtol) + "; it is not negative, and finite.");
  if (options.linear && options.method != Ode::rodas5p)
    throw ArgumentError("odeint: linear says how linear systems are solved, and only rodas5p has some.");
  if (options.linear && options.adjoint == OdeAdjoint::continuous &&
      (options.linear->solve || options.linear->solve_transposed || options.linear->iteration.preconditioner))
    throw ArgumentError(
        "odeint: the systems of the continuous adjoint are others than those that linear's solve, solve_transposed or "
        "preconditioner is for. Take an iterative method without them, or the adjoint by steps.");
  if (options.max_steps < 0)
    throw ArgumentError("odeint: max_steps is " + std::to_string(options.max_steps) + "; it must not be negative.");
}

// What `whose` function of the user gives at t and y. The step goes on with both: a write to them would be part of it.
template <class F>
auto unwritten(const std::string& whose, const Tensor& t, const Tensor& y, const F& function) {
  const uint64_t before = write_count(t) + write_count(y);
  auto result = function();
  if (write_count(t) + write_count(y) != before)
    throw MutationError(whose +
                        " writes to the time or the state that it is given, with which the step goes on. Clone "
                        "it first, and return what the write was for.");
  return result;
}

// What an event is given by the user, of one vector.
std::function<Tensor(const Tensor&, const Tensor&)> on_vector(const dynamic::OdeEvent& event,
                                                              const solvers::Unknowns& like) {
  return [event, like](const Tensor& t, const Tensor& y) {
    const Tensor value = unwritten("odeint_until: the event", t, y, [&] { return event(t, like.list(y)); });
    if (!value.defined() || value.numel() != 1 || value.scalar_type() != like.options().dtype().toScalarType())
      throw ArgumentError("odeint_until: the event gave " + (value.defined() ? describe(value) : "nothing") +
                          "; it gives one number of the state's dtype, which is zero where the event is.");
    return value.reshape({});
  };
}

// The state, where arguments are right.
solvers::Unknowns checked(const char* name, const Tensors& y0, const Tensor& ts, const OdeOptions& options) {
  check_options(options);
  solvers::Unknowns like(name, y0);
  const at::ScalarType dtype = y0[0].scalar_type();
  if (!c10::isFloatingType(dtype) || like.size() == 0)
    throw ArgumentError("odeint: y0 is " + describe(y0[0]) +
                        ". It is real numbers, at least one; of complex ones, view_as_real.");
  if (!ts.defined() || ts.dim() != 1 || ts.size(0) == 0 || ts.is_complex())
    throw ArgumentError("odeint: ts is " + (ts.defined() ? describe(ts) : "undefined") +
                        ". It is the times, of one dimension: the first one is that of y0.");
  return like;
}

// The solution without an event, or up to it.
OdeEventSolution<Tensors> solve(const char* name, const dynamic::OdeFunction& f, const dynamic::OdeEvent& event,
                                const Tensors& y0, const Tensor& ts, const OdeOptions& options) {
  const solvers::Unknowns like = checked(name, y0, ts, options);
  // The caller's memory is not shown to f.
  const Tensor times = ts.to(like.options(), /*non_blocking=*/false, /*copy=*/true), t = times.select(0, 0);
  const Tensor y = like.own_vector(y0, "y0");
  const int64_t count = times.size(0);
  const Tensor end = times.select(0, count - 1), way = at::sign(end - t).detach();
  const Slope slope = [f, like, name = std::string(name)](const Tensor& now, const Tensor& at) {
    const char* whose = "the right-hand side";
    return like.vector(unwritten(name + ": " + whose, now, at, [&] { return f(now, like.list(at)); }), whose);
  };
  const double epsilon = solvers::epsilon_of(y.scalar_type());
  Walk walk{slope, solvers::ode_method(options), options, Tolerances(options, like, y0), end, way, epsilon, {}};
  if (event) walk.event = solvers::OdeEventRule{on_vector(event, like), options.crossing};
  const Tensor apart = times.detach().slice(0, 1) - times.detach().slice(0, 0, count - 1);
  const Tensor in_order = at::logical_and(at::logical_or(apart * way > 0, apart == 0).all(), t.detach() == t.detach());
  Tensors s = walk.start(t, y, in_order);
  const size_t without_path = s.size();
  if (event || count > 2) s = walk.with_path(std::move(s));
  Tensors values{y.unsqueeze(0)};
  if (count > 2) values.push_back(walk.in_between(times.slice(0, 1, count - 1), s));
  if (!event) s.resize(without_path);
  s = walk.up_to(end, s, static_cast<bool>(event));
  Tensor last_t = at::where(way == 0, end, s[kT]), last_y = walk.at_end(s);
  if (count > 1) values.push_back(walk.or_nan(s, end, last_y).unsqueeze(0));
  Tensor ys = at::cat(values, 0);
  if (event) {
    const Tensor happened = s[kStatus] == number(OdeStatus::event);
    const solvers::OdePath path = walk.path_of(s);
    const Tensor theta = walk.event->place_on(path, s[kEvent], happened);
    last_t = at::where(happened, path.time(theta), last_t);
    last_y = at::where(happened, path.state(theta), last_y);
    const Tensor behind = at::logical_and(happened, walk.before(last_t, times));
    ys = at::where(behind.unsqueeze(1), none_like(ys), ys);
  }
  OdeEventSolution<Tensors> found;
  int64_t first = 0;
  for (const Tensor& leaf : y0) {
    std::vector<int64_t> sizes = leaf.sizes().vec();
    sizes.insert(sizes.begin(), count);
    found.ys.push_back(ys.narrow(1, first, leaf.numel()).reshape(sizes));
    first += leaf.numel();
  }
  found.y = like.list(last_y);
  const Tensor unfinished =
      at::where(walk.before(s[kT], end), number(OdeStatus::max_steps), at::zeros_like(s[kStatus]));
  found.t = last_t;
  found.status = at::where(s[kStatus] > 0, s[kStatus], unfinished);
  found.steps = s[kSteps];
  found.rejected = s[kRejected];
  return found;
}

}  // namespace

OdeSolution<Tensors> dynamic::odeint(const OdeFunction& f, const Tensors& y0, const Tensor& ts,
                                     const OdeOptions& options) {
  if (options.adjoint == OdeAdjoint::continuous) {
    checked("odeint", y0, ts, options);
    return solvers::odeint_with_adjoint(f, y0, ts, options);
  }
  OdeEventSolution<Tensors> found = solve("odeint", f, {}, y0, ts, options);
  return {std::move(found.ys), std::move(found.t), std::move(found.status), std::move(found.steps),
          std::move(found.rejected)};
}

OdeEventSolution<Tensors> dynamic::odeint_until(const OdeFunction& f, const OdeEvent& event, const Tensors& y0,
                                                const Tensor& ts, const OdeOptions& options) {
  if (!event) throw ArgumentError("odeint_until: the event is an empty function.");
  if (options.adjoint == OdeAdjoint::continuous)
    throw ArgumentError("odeint_until: there is no continuous adjoint of an event. Leave it at the steps.");
  return solve("odeint_until", f, event, y0, ts, options);
}

void detail::refuse_other_slope() {
  throw ArgumentError(
      "odeint: the right-hand side returned a tree with other numbers, keys or sizes than y0 has. It returns a tree "
      "like y0: the derivative of each tensor by the time.");
}

}  // namespace tower
