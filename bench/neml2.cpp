// Four material models of other people's benchmark: NEML2 (applied-material-modeling/neml2), benchmark/ at 2f6d7d2a,
// whose formulas and parameters these are. Strain grows to (0.1, -0.05, -0.05) in 100 load steps (99 increments): in
// 1e5 s at all points of the Chaboche models, in 0.1 s at the first and 1e5 s at the last of the others. At each step
// implicit Euler's equations are solved.
//
// Each model is written for one point, as the residual of its equations. Newton's method is a while_loop, which ends
// for each point by the test that NEML2 makes for all together (1e-8 of the first residual, or 1e-10), and the load
// steps are a scan. All of it is compiled under vmap, and so is the derivative of the mean final stress by all
// parameters.
//
//   neml2 [points [model]]
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/compile.h>
#include <tower/tower.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/report.h"

namespace {

using at::Tensor;

constexpr int64_t kSteps = 100;
constexpr double kEps = std::numeric_limits<double>::epsilon();
const double kRoot = std::sqrt(2.0 / 3);

// ---- symmetric tensors: xx, yy, zz, √2 yz, √2 xz, √2 xy ----

Tensor identity() { return at::tensor({1.0, 1.0, 1.0, 0.0, 0.0, 0.0}); }
Tensor volume(const Tensor& a) { return a.slice(0, 0, 3).sum(); }
Tensor deviator(const Tensor& a) { return a - identity() * (volume(a) / 3); }
Tensor von_mises(const Tensor& deviator) { return (1.5 * at::dot(deviator, deviator) + kEps).sqrt(); }

// ---- what the models have in common ----

// Parameters, as one vector; the first five are those of all models.
struct Common {
  Tensor young, poisson, yield_stress, viscosity, exponent;
  explicit Common(const Tensor& p) : young(p[0]), poisson(p[1]), yield_stress(p[2]), viscosity(p[3]), exponent(p[4]) {}

  Tensor stress(const Tensor& strain) const {
    const Tensor bulk = young / (3 * (1 - 2 * poisson)), shear = young / (2 * (1 + poisson));
    return identity() * (bulk * volume(strain)) + 2 * shear * deviator(strain);
  }
  Tensor yield(const Tensor& equivalent_stress, const Tensor& hardening) const {
    return kRoot * (equivalent_stress - yield_stress - hardening);
  }
  Tensor flow_rate(const Tensor& yield) const {
    const Tensor flows = yield > 0;
    return at::where(flows, at::where(flows, yield / viscosity, 1.0).pow(exponent), 0.0);
  }
};

struct Increment {
  Tensor time, strain, strain_after;
};

struct Model {
  std::string name;
  std::vector<double> parameters;
  int64_t state;   // numbers that a step hands to the next one
  double fastest;  // the power of ten of the shortest time
  double budget, theirs;
  // All for one point.
  std::function<Tensor(const Tensor& p, const Tensor& x, const Tensor& state, const Increment& d)> residual = {};
  std::function<Tensor(const Tensor& state, const Increment& d)> guess = {};
  std::function<Tensor(const Tensor& p, const Tensor& x, const Tensor& state, const Increment& d)> next_state = {};
  std::function<Tensor(const Tensor& p, const Tensor& state, const Increment& d)> stress = {};
};

// ---- isoharden, chaboche: unknowns are the stress, the plastic strain, and the back stresses ----

// Where hardening is linear: { …, modulus }; after Voce: { …, its limit, its rate, and C, g, A, a of each back stress
// }.
Tensor rate_residual(const Tensor& p, const Tensor& x, const Tensor& before, const Increment& d,
                     int64_t back_stresses) {
  const Common c(p);
  const auto back_stress = [](const Tensor& all, int64_t k) { return all.slice(0, 7 + 6 * k, 13 + 6 * k); };
  const Tensor stress = x.slice(0, 0, 6), plastic = x[6];
  Tensor over = stress;
  for (int64_t k = 0; k < back_stresses; ++k) over = over - back_stress(x, k);
  const Tensor s = deviator(over), size = von_mises(s);
  const Tensor hardening = back_stresses == 0 ? p[5] * plastic : p[5] * (1 - (-p[6] * plastic).exp());
  const Tensor flow = d.time * c.flow_rate(c.yield(size, hardening)), normal = kRoot * 1.5 * s / size;
  std::vector<Tensor> r{stress - before.slice(0, 0, 6) - c.stress(d.strain - flow * normal),
                        (plastic - before[6] - kRoot * flow).unsqueeze(0)};
  for (int64_t k = 0; k < back_stresses; ++k) {
    const Tensor back = back_stress(x, k);
    const auto parameter = [&](int64_t i) { return p[7 + 4 * k + i]; };
    const Tensor recovery = parameter(2) * (at::dot(back, back) + kEps).sqrt().pow(parameter(3) - 1);
    r.push_back(back - back_stress(before, k) - (2.0 / 3 * parameter(0) * normal - parameter(1) * back) * flow +
                d.time * recovery * back);
  }
  return at::cat(r);
}

Model rate_model(std::string name, std::vector<double> parameters, int64_t back_stresses, double fastest, double budget,
                 double theirs) {
  Model m{.name = std::move(name),
          .parameters = std::move(parameters),
          .state = 7 + 6 * back_stresses,
          .fastest = fastest,
          .budget = budget,
          .theirs = theirs};
  m.residual = [back_stresses](const Tensor& p, const Tensor& x, const Tensor& state, const Increment& d) {
    return rate_residual(p, x, state, d, back_stresses);
  };
  m.guess = [](const Tensor& state, const Increment&) { return state; };
  m.next_state = [](const Tensor&, const Tensor& x, const Tensor&, const Increment&) { return x; };
  m.stress = [](const Tensor&, const Tensor& state, const Increment&) { return state.slice(0, 0, 6); };
  return m;
}

// ---- radret: radial return, whose only unknown is how much it flows ----

// State: plastic strain, equivalent plastic strain, kinematic plastic strain, the last flow and its rate.
// Parameters: { …, isotropic modulus, kinematic modulus }.
struct Return {
  Tensor plastic, equivalent, kinematic;
  Return(const Tensor& p, const Tensor& flow, const Tensor& before, const Increment& d) {
    const Common c(p);
    const Tensor trial = c.stress(d.strain_after - before.slice(0, 0, 6)) - p[6] * before.slice(0, 7, 13);
    const Tensor s = deviator(trial), normal = kRoot * 1.5 * s / von_mises(s);
    plastic = before.slice(0, 0, 6) + flow * normal;
    equivalent = before[6] + kRoot * flow;
    kinematic = before.slice(0, 7, 13) + flow * normal;
  }
};

Model radial_return() {
  Model m{.name = "radret",
          .parameters = {1e5, 0.3, 5, 100, 2, 1000, 1000},
          .state = 15,
          .fastest = -1,
          .budget = 80,
          .theirs = 171};
  m.residual = [](const Tensor& p, const Tensor& x, const Tensor& state, const Increment& d) {
    const Common c(p);
    const Return now(p, x[0], state, d);
    const Tensor over = c.stress(d.strain_after - now.plastic) - p[6] * now.kinematic;
    return x / d.time - c.flow_rate(c.yield(von_mises(deviator(over)), p[5] * now.equivalent));
  };
  m.guess = [](const Tensor& state, const Increment& d) { return (state[14] * d.time).unsqueeze(0); };
  m.next_state = [](const Tensor& p, const Tensor& x, const Tensor& state, const Increment& d) {
    const Return now(p, x[0], state, d);
    return at::cat({now.plastic, now.equivalent.unsqueeze(0), now.kinematic, x, x / d.time});
  };
  m.stress = [](const Tensor& p, const Tensor& state, const Increment& d) {
    return Common(p).stress(d.strain_after - state.slice(0, 0, 6));
  };
  return m;
}

std::vector<Model> models() {
  const std::vector<double> common{1e5, 0.3, 5, 100, 2}, chaboche{1e4, 100, 1e-8, 1.2, 1e3, 9, 1e-10, 3.2};
  const auto with = [&](std::vector<double> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };
  std::vector<double> two = with({100, 1.2}), four;
  two.insert(two.end(), chaboche.begin(), chaboche.end());
  four = two;
  four.insert(four.end(), chaboche.begin(), chaboche.end());
  return {rate_model("isoharden", with({1000}), 0, -1, 150, 322), radial_return(),
          rate_model("chaboche2", two, 2, 5, 1200, 2336), rate_model("chaboche4", four, 4, 5, 3000, 5563)};
}

// ---- a step, and all of them ----

Tensor corrected(const Model& m, const Tensor& p, const Tensor& x, const Tensor& state, const Increment& d) {
  const auto residual = [&](const Tensor& x) { return m.residual(p, x, state, d); };
  return x - at::linalg_solve(tower::jacfwd(residual)(x), residual(x));
}

Tensor solved(const Model& m, const Tensor& p, const Tensor& state, const Increment& d) {
  const Tensor start = m.guess(state, d);
  const auto norm = [=](const Tensor& x) { return m.residual(p, x, state, d).norm(); };
  const Tensor enough = at::clamp_min(1e-8 * norm(start), 1e-10);
  return tower::while_loop([=](const Tensor& x) { return norm(x) > enough; },
                           [=](const Tensor& x) { return corrected(m, p, x, state, d); }, start, {.max_steps = 50});
}

// What the equations say of derivatives, by one correction more, from a point that has none.
Tensor solved_with_derivatives(const Model& m, const Tensor& p, const Tensor& state, const Increment& d) {
  const Increment fixed{d.time.detach(), d.strain.detach(), d.strain_after.detach()};
  const Tensor x = solved(m, p.detach(), state.detach(), fixed).detach();
  const auto residual = [&](const Tensor& x) { return m.residual(p.detach(), x, state.detach(), fixed); };
  return x - at::linalg_solve(tower::jacfwd(residual)(x).detach(), m.residual(p, x, state, d));
}

using Solve = Tensor (*)(const Model&, const Tensor&, const Tensor&, const Increment&);

Tensor strain_at(int64_t step) {
  return at::tensor({0.1, -0.05, -0.05, 0.0, 0.0, 0.0}) * (static_cast<double>(step) / (kSteps - 1));
}

// What drives all points: the strains after each increment.
Tensor strains() {
  std::vector<Tensor> all;
  for (int64_t k = 1; k < kSteps; ++k) all.push_back(strain_at(k));
  return at::stack(all);
}
Tensor times_of(const Model& m, int64_t points) {
  return at::logspace(m.fastest, 5, points, 10, at::kDouble) / (kSteps - 1);
}

// The stresses of a point after each increment, each of which takes `time`.
auto history(const Model& m, Solve solve) {
  return [&m, solve, increment = strain_at(1)](const Tensor& p, const Tensor& time, const Tensor& strains) {
    const auto step = [&](const Tensor& state, const Tensor& strain) {
      const Increment d{time, increment, strain};
      const Tensor next = m.next_state(p, solve(m, p, state, d), state, d);
      return std::pair(next, m.stress(p, next, d));
    };
    return tower::scan(step, at::zeros({m.state}, at::kDouble), strains).second;
  };
}
// Those of all points, by point.
auto histories(const Model& m, Solve solve) {
  return tower::vmap(history(m, solve), {.in_dims = {std::nullopt, 0, std::nullopt}});
}
// The mean of the final stresses, of which the components weigh differently.
auto mean_stress(const Model& m, Solve solve) {
  return [all = histories(m, solve)](const Tensor& p, const Tensor& times, const Tensor& strains) {
    const Tensor weights = at::tensor({1.0, 0.3, -0.5, 0.7, 0.2, 0.4});
    return at::mv(all(p, times, strains).select(1, kSteps - 2), weights).mean();
  };
}

double milliseconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// The largest relative difference from stresses that NEML2's own residuals have as their roots (neml2_reference.txt).
double difference_from_reference(const std::string& name, const Tensor& stresses) {
  std::ifstream file(TOWER_BENCH_DIR "/neml2_reference.txt");
  if (!file) throw std::runtime_error("neml2_reference.txt is missing");
  double worst = 0;
  std::string model;
  int64_t point, step, found = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    in >> model >> point >> step;
    std::vector<double> expected(6);
    for (double& v : expected) in >> v;
    if (model != name) continue;
    const Tensor e = at::tensor(expected);
    worst = std::max(worst, ((stresses[point][step - 1] - e).norm() / e.norm()).item<double>());
    ++found;
  }
  if (found != 12) throw std::runtime_error("neml2_reference.txt lacks " + name);
  return worst;
}

// Of the mean final stress by all parameters, beside central differences.
double error_of_gradient(const Model& m, const Tensor& gradient, const Tensor& times) {
  const Tensor p = at::tensor(m.parameters);
  const auto value = tower::compile(mean_stress(m, solved));
  double worst = 0;
  for (int64_t i = 0; i < p.numel(); ++i) {
    const double h = 1e-5 * m.parameters[static_cast<size_t>(i)];
    const auto at = [&](double by) {
      Tensor moved = p.clone();
      moved[i] += by * h;
      return value(moved, times, strains()).item<double>();
    };
    const double expected = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h);
    const double scale = at(0) / m.parameters[static_cast<size_t>(i)];
    worst = std::max(worst,
                     std::abs(gradient[i].item<double>() - expected) / std::max(std::abs(scale), std::abs(expected)));
  }
  return worst;
}

void run(report::Table& table, const Model& m, int64_t points) {
  const Tensor p = at::tensor(m.parameters), all_strains = strains(), few = times_of(m, 4), times = times_of(m, points);
  const auto add = [&](const char* model, const std::string& what, const std::string& measured,
                       const std::string& budget, double value, double most, const std::string& theirs = "") {
    table.add({model, what, measured, budget, theirs, report::verdict(value, most)});
  };
  const auto relative_error = [&](const char* model, const char* what, double error) {
    add(model, what, fmt::format("{:.1e}", error), "1e-7", error, 1e-7);
  };
  const auto first_call = [&](const char* what, double first) {
    add("", what, fmt::format("{:.0f}", first), "2000", first, 2000);
  };
  const auto least = [](const auto& f) {
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run < 3; ++run) best = std::min(best, milliseconds(f));
    return best;
  };
  relative_error(m.name.c_str(), "relative error, operator by operator",
                 difference_from_reference(m.name, histories(m, solved)(p, few, all_strains)));
  const auto forward = tower::compile(histories(m, solved));
  const auto all = [&] { forward(p, times, all_strains); };
  first_call("first call, ms", milliseconds(all));
  all();  // compiles
  const double best = least(all);
  add("", fmt::format("{} points, 100 steps, ms", points), fmt::format("{:.0f}", best), fmt::format("{:.0f}", m.budget),
      best, m.budget, fmt::format("{:.0f}", m.theirs));
  relative_error("", "relative error", difference_from_reference(m.name, forward(p, few, all_strains)));
  const auto gradient = tower::compile(tower::grad(mean_stress(m, solved_with_derivatives)));
  Tensor found;
  const auto back = [&] { found = gradient(p, times, all_strains); };
  first_call("first call of the derivative by all parameters, ms", milliseconds(back));
  const double second = milliseconds(back), derivative = least(back);
  first_call("second call, which compiles, ms", second);
  add("", "the derivative, ms; × the stresses", fmt::format("{:.0f}; {:.1f}", derivative, derivative / best), "6",
      derivative / best, 6);
  const double error = error_of_gradient(m, found, times);
  add("", "error of the derivative", fmt::format("{:.1e}", error), "1e-6", error, 1e-6);
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(2);
  const int64_t points = argc > 1 ? std::atoll(argv[1]) : 4096;
  report::Table table({"two threads", "", "measured", "budget", "NEML2, 16 cores", ""});
  for (const Model& m : models())
    if (argc < 3 || m.name == argv[2]) run(table, m, points);
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "neml2: {}\n", error.what());
  return EXIT_FAILURE;
}
